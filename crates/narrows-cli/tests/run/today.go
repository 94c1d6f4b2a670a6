// A server and a client with Go's defaults: the server listens with MPTCP if the kernel supports
// it, the default of modules since Go 1.24; the client asks for it. They speak the protocol of
// answers.py and asks.py.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// listen HOST CONNECTIONS, or dial HOST PORT ROUNDS
func main() {
	if os.Args[1] == "listen" {
		connections, err := strconv.Atoi(os.Args[3])
		must(err)
		listen(os.Args[2], connections)
		return
	}
	rounds, err := strconv.Atoi(os.Args[4])
	must(err)
	dial(os.Args[2]+":"+os.Args[3], rounds)
}

func listen(host string, connections int) {
	listener, err := net.Listen("tcp", host+":0")
	must(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	done := make(chan bool)
	for range connections {
		c, err := listener.Accept()
		must(err)
		go func() {
			lines := bufio.NewReader(c)
			for {
				line, err := lines.ReadBytes('\n')
				if err != nil {
					break
				}
				for i, b := range line {
					if 'a' <= b && b <= 'z' {
						line[i] = b - 32
					}
				}
				_, err = c.Write(line)
				must(err)
			}
			c.Close()
			done <- true
		}()
	}
	for range connections {
		<-done
	}
}

func dial(address string, rounds int) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	dialer.SetMultipathTCP(true)
	c, err := dialer.DialContext(context.Background(), "tcp", address)
	must(err)
	answers := bufio.NewReader(c)
	for i := range rounds {
		line := bytes.Repeat(fmt.Appendf(nil, "%d words that come again and again ", i), 60)
		_, err = c.Write(append(line, '\n'))
		must(err)
		got, err := answers.ReadBytes('\n')
		must(err)
		if !bytes.Equal(got, append(bytes.ToUpper(line), '\n')) {
			fmt.Println("wrong", i)
			os.Exit(1)
		}
		time.Sleep(4 * time.Millisecond)
	}
	must(c.Close())
	fmt.Println("right")
}
