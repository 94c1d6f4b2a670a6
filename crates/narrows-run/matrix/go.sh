# needs: go
# scenarios: get post half-close reset refused
# Go programs make system calls without libc.
case $role in
server)
    if [ ! -e "$KEEP/go.done" ]; then
        mkdir -p "$KEEP/go"
        cat >"$KEEP/go/main.go" <<'GO'
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

func serve(addr, other string) {
	listener, err := net.Listen("tcp", other)
	check(err)
	go func() {
		for {
			c, err := listener.Accept()
			check(err)
			go func() {
				first := make([]byte, 1)
				io.ReadFull(c, first)
				if first[0] == 'r' {
					c.(*net.TCPConn).SetLinger(0)
				} else {
					fmt.Fprintln(c, hash(c))
				}
				c.Close()
			}()
		}
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		if q.Method == "POST" {
			fmt.Fprint(w, hash(q.Body))
		} else {
			http.ServeFile(w, q, os.Getenv("DATA")+q.URL.Path)
		}
	})
	check(http.ListenAndServe(addr, nil))
}

func main() {
	addr := os.Getenv("ADDR") + ":" + os.Getenv("PORT")
	other := os.Getenv("ADDR") + ":" + os.Getenv("PORT2")
	if os.Args[1] == "serve" {
		serve(addr, other)
	}
	time.AfterFunc(50*time.Second, func() { os.Exit(3) })
	data, err := os.ReadFile(os.Getenv("DATA") + "/big")
	check(err)
	want := fmt.Sprintf("%x", sha256.Sum256(data))
	right := true
	switch os.Args[1] {
	case "get", "post":
		for i := 0; i < 5; i++ {
			var a *http.Response
			if os.Args[1] == "get" {
				a, err = http.Get("http://" + addr + "/big")
				check(err)
				right = right && hash(a.Body) == want
			} else {
				a, err = http.Post("http://"+addr+"/", "x/y", bytes.NewReader(data))
				check(err)
				got, _ := io.ReadAll(a.Body)
				right = right && string(got) == want
			}
			a.Body.Close()
		}
	case "half-close":
		c, err := net.Dial("tcp", other)
		check(err)
		c.Write([]byte("h"))
		c.Write(data)
		check(c.(*net.TCPConn).CloseWrite())
		got, err := io.ReadAll(c)
		check(err)
		right = string(got) == want+"\n"
	case "reset":
		c, err := net.Dial("tcp", other)
		check(err)
		c.Write([]byte("r"))
		_, err = c.Read(make([]byte, 1))
		right = errors.Is(err, syscall.ECONNRESET)
	case "refused":
		_, err := net.Dial("tcp", os.Getenv("ADDR")+":"+os.Getenv("PORT3"))
		right = errors.Is(err, syscall.ECONNREFUSED)
	}
	fmt.Println(right)
	if !right {
		os.Exit(1)
	}
}
GO
        (cd "$KEEP/go" && CGO_ENABLED=0 GO111MODULE=off GOFLAGS= GOCACHE="$KEEP/go/cache" go build -o lab main.go) || fail "go build"
        : >"$KEEP/go.done"
    fi
    $RUN "$KEEP/go/lab" serve &
    up "$PORT" "$PORT2"
    ;;
client) exits 0 $RUN "$KEEP/go/lab" $scenario ;;
esac
