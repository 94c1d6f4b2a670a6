# needs: go
# scenarios: get post stream parallel hijack options late
# net/http with a recent module, so that its listeners use MPTCP. Go programs make system calls
# without libc.
case $role in
server)
    if [ ! -e "$KEEP/go-http.done" ]; then
        mkdir -p "$KEEP/go-http"
        printf 'module lab\n\ngo 1.24\n' >"$KEEP/go-http/go.mod"
        cat >"$KEEP/go-http/main.go" <<'GO'
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func hash(r io.Reader) string {
	h := sha256.New()
	_, err := io.Copy(h, r)
	check(err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func serve(at string) {
	http.HandleFunc("/sum", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, hash(q.Body)) })
	http.HandleFunc("/stream", func(w http.ResponseWriter, q *http.Request) {
		for i := 0; i < 5; i++ {
			fmt.Fprintln(w, i)
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	http.HandleFunc("/hijack", func(w http.ResponseWriter, q *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		check(err)
		c.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nraw"))
		c.Close()
	})
	http.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		http.ServeFile(w, q, os.Getenv("DATA")+q.URL.Path)
	})
	check(http.ListenAndServe(at, nil))
}

func get(url string) string {
	a, err := http.Get(url)
	check(err)
	defer a.Body.Close()
	return fmt.Sprint(a.StatusCode, " ", hash(a.Body))
}

func main() {
	at := os.Getenv("ADDR") + ":" + os.Getenv("PORT")
	base := "http://" + at
	if os.Args[1] == "serve" {
		serve(at)
	}
	time.AfterFunc(50*time.Second, func() { os.Exit(3) })
	data, err := os.ReadFile(os.Getenv("DATA") + "/big")
	check(err)
	switch os.Args[1] {
	case "get":
		fmt.Println(get(base+"/big") == "200 "+hash(bytes.NewReader(data)), get(base+"/none"))
	case "post":
		a, err := http.Post(base+"/sum", "x/y", bytes.NewReader(data))
		check(err)
		got, err := io.ReadAll(a.Body)
		check(err)
		fmt.Println(string(got) == hash(bytes.NewReader(data)))
	case "stream", "hijack":
		fmt.Println(get(base + "/" + os.Args[1]))
	case "parallel":
		var all sync.WaitGroup
		var lock sync.Mutex
		seen := map[string]int{}
		for i := 0; i < 32; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for k := 0; k < 5; k++ {
					said := get(base + "/stream")
					lock.Lock()
					seen[said]++
					lock.Unlock()
				}
			}()
		}
		all.Wait()
		fmt.Println(seen)
	case "options":
		c, err := net.Dial("tcp", at)
		check(err)
		raw, err := c.(*net.TCPConn).SyscallConn()
		check(err)
		raw.Control(func(fd uintptr) {
			for _, option := range [][2]int{{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}, {syscall.IPPROTO_TCP, syscall.TCP_NODELAY}} {
				value, err := syscall.GetsockoptInt(int(fd), option[0], option[1])
				fmt.Println(value != 0, err)
			}
		})
		file, err := c.(*net.TCPConn).File()
		check(err)
		other, err := net.FileConn(file)
		check(err)
		fmt.Println(other.RemoteAddr().String() == c.RemoteAddr().String())
		_, err = net.DialTimeout("tcp", os.Getenv("ADDR")+":"+os.Getenv("PORT2"), time.Second)
		fmt.Println(errors.Is(err, syscall.ECONNREFUSED))
	case "late":
		c, err := net.Dial("tcp", at)
		check(err)
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		fmt.Println(errors.Is(err, os.ErrDeadlineExceeded))
	}
}
GO
        (cd "$KEEP/go-http" && CGO_ENABLED=0 GOTOOLCHAIN=local GOPROXY=off GOFLAGS= GOCACHE="$KEEP/go/cache" go build -o lab .) || fail "go build"
        : >"$KEEP/go-http.done"
    fi
    $RUN "$KEEP/go-http/lab" serve &
    up "$PORT"
    ;;
client) exits 0 $RUN "$KEEP/go-http/lab" $scenario ;;
esac
