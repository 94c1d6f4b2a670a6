// A program for `narrows run` that makes its own system calls. Servers have the address 127.0.0.1,
// clients 127.0.0.2.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

func must(what string, err error) {
	if err != nil {
		fmt.Println(what, err)
		os.Exit(1)
	}
}

func is(right bool, what string, got ...any) {
	if !right {
		fmt.Println(append([]any{what}, got...)...)
		os.Exit(1)
	}
}

var dialer = net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 10 * time.Second}

func noise(seed int64, n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(b)
	return b
}

// Posted data comes back, and the client's address is right.
func web() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must("listen", err)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		is(host == "127.0.0.2", "remote", r.RemoteAddr)
		body, err := io.ReadAll(r.Body)
		must("body", err)
		w.Write(body)
	}))
	var all sync.WaitGroup
	for i := 0; i < 5; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
			data := noise(int64(i), 5<<20)
			for j := 0; j < 3; j++ {
				answer, err := client.Post("http://"+l.Addr().String()+"/", "x/y", bytes.NewReader(data))
				must("post", err)
				back, err := io.ReadAll(answer.Body)
				must("answer", err)
				answer.Body.Close()
				is(sha256.Sum256(back) == sha256.Sum256(data), "answer of", len(back))
			}
		}()
	}
	all.Wait()
}

// Half close; and each end knows the other's address.
func half() {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must("listen", err)
	data := noise(9, 3<<20)
	go func() {
		s, err := l.Accept()
		must("accept", err)
		must("no delay", s.(*net.TCPConn).SetNoDelay(true))
		got, err := io.ReadAll(s)
		must("read", err)
		is(bytes.Equal(got, data), "got", len(got))
		_, err = s.Write([]byte("late"))
		must("write", err)
		s.Close()
	}()
	c, err := dialer.Dial("tcp", l.Addr().String())
	must("dial", err)
	is(c.RemoteAddr().String() == l.Addr().String(), "peer", c.RemoteAddr())
	must("keep alive", c.(*net.TCPConn).SetKeepAlivePeriod(time.Minute))
	_, err = c.Write(data)
	must("write", err)
	must("close for writing", c.(*net.TCPConn).CloseWrite())
	rest, err := io.ReadAll(c)
	must("read", err)
	is(string(rest) == "late", "rest", string(rest))
}

func main() {
	web()
	half()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must("listen", err)
	// A deadline ends a waiting accept.
	l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond))
	_, err = l.Accept()
	is(errors.Is(err, os.ErrDeadlineExceeded), "deadline", err)
	address := l.Addr().String()
	l.Close()
	_, err = dialer.Dial("tcp", address)
	is(errors.Is(err, syscall.ECONNREFUSED), "refused", err)
	// A reset.
	l, err = net.Listen("tcp", "127.0.0.1:0")
	must("listen", err)
	go func() {
		s, err := l.Accept()
		must("accept", err)
		_, err = s.Read(make([]byte, 1))
		must("read", err)
		s.(*net.TCPConn).SetLinger(0)
		s.Close()
	}()
	c, err := dialer.Dial("tcp", l.Addr().String())
	must("dial", err)
	_, err = c.Write([]byte("x"))
	must("write", err)
	_, err = c.Read(make([]byte, 1))
	is(errors.Is(err, syscall.ECONNRESET), "reset", err)
	fmt.Println("fine")
}
