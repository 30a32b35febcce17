// Package headcount asks headcount about a request. If headcount refuses it, its answer is passed on to the client. If
// headcount does not answer, the request is admitted.
package headcount

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// CheckURL is where headcount answers.
var CheckURL = "http://127.0.0.1:7070/v1/check"

// The longest value of Authorization that headcount takes.
const longest = len("Bearer ") + 4096

// A refusal may wait for up to 1 s, so the timeout is longer. By default, Go keeps only two idle connections to a host, so
// most checks of a crowd would open new ones.
var client = http.Client{
	Timeout:   1500 * time.Millisecond,
	Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second},
}

// If a check times out and no other was answered since it was sent, headcount hangs. Until it answers again, one request
// a second is checked; the others are admitted at once.
var state struct {
	sync.Mutex
	hangs      bool
	nextCheck  time.Time
	lastAnswer time.Time
}

func mayAsk(now time.Time) bool {
	state.Lock()
	defer state.Unlock()
	if !state.hangs {
		return true
	}
	if now.Before(state.nextCheck) {
		return false
	}
	state.nextCheck = now.Add(time.Second)
	return true
}

func gotAnAnswer() {
	state.Lock()
	defer state.Unlock()
	state.hangs, state.lastAnswer = false, time.Now()
}

func gotNoAnswer(sent time.Time) {
	state.Lock()
	defer state.Unlock()
	if !state.hangs && state.lastAnswer.Before(sent) {
		state.hangs, state.nextCheck = true, time.Now().Add(time.Second)
	}
}

// Refused asks headcount about a request. If headcount refuses the request, Refused sends the refusal to the client and
// returns true.
func Refused(w http.ResponseWriter, r *http.Request) bool {
	if len(r.Header.Get("Authorization")) > longest {
		http.Error(w, "The token is too long.", http.StatusRequestHeaderFieldsTooLarge)
		return true
	}
	sent := time.Now()
	if !mayAsk(sent) {
		return false
	}
	ask, _ := http.NewRequest("GET", CheckURL, nil)
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
			gotNoAnswer(sent)
		}
		return false
	}
	defer answer.Body.Close()
	gotAnAnswer()
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
