// Package headcount asks headcount about a request. If headcount refuses it, its answer is passed on to the client. If
// headcount does not answer, the request is admitted. Not run by our tests.
package headcount

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// A refusal may wait for up to 1 s, so the timeout is longer. By default, Go keeps only two idle connections to a host, so most checks of a crowd would open new ones.
var client = http.Client{
	Timeout:   1500 * time.Millisecond,
	Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second},
}

// After a timeout, requests are admitted unchecked for a second, so that a headcount that hangs delays few of them.
var uncheckedUntil atomic.Int64

// Refused asks headcount about a request. If headcount refuses the request, Refused sends the refusal to the client and
// returns true.
func Refused(w http.ResponseWriter, r *http.Request) bool {
	if time.Now().UnixNano() < uncheckedUntil.Load() {
		return false
	}
	ask, _ := http.NewRequest("GET", "http://127.0.0.1:7070/v1/check", nil)
	ask.Header.Set("Authorization", r.Header.Get("Authorization"))
	for _, name := range []string{"Accept", "Accept-Language", "X-Headcount-Ticket"} {
		if value := r.Header.Get(name); value != "" {
			ask.Header.Set(name, value)
		}
	}
	// headcount uses method, path and address only if its server.trusted_proxies lists this program's address.
	ask.Header.Set("X-Original-Method", r.Method)
	ask.Header.Set("X-Original-URI", r.URL.RequestURI())
	// Some servers look at all values of Upgrade, and HTTP/2 opens WebSockets by CONNECT.
	if upgrade := strings.Join(r.Header.Values("Upgrade"), ", "); upgrade != "" {
		ask.Header.Set("X-Original-Upgrade", upgrade)
	}
	if r.Method == http.MethodConnect {
		ask.Header.Set("X-Original-Upgrade", "connect")
	}
	if address, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		ask.Header.Set("X-Forwarded-For", address)
	}
	answer, err := client.Do(ask)
	if err != nil {
		if os.IsTimeout(err) {
			uncheckedUntil.Store(time.Now().Add(time.Second).UnixNano())
		}
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode != 400 && answer.StatusCode != 429 && answer.StatusCode != 431 {
		return false
	}
	kept := []string{"Content-Type", "Content-Language", "Retry-After", "Refresh", "Cache-Control", "X-Headcount-Ticket"}
	for _, name := range kept {
		if value := answer.Header.Get(name); value != "" {
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(answer.StatusCode)
	io.Copy(w, answer.Body)
	return true
}
