// Asks headcount about the requests in its arguments, and prints the client's results. See tests/clients.rs.
package headcount

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The request that the arguments of check describe: a token or the length of one, and the options.
func request(described string) *http.Request {
	var parts []json.RawMessage
	var token any
	var options map[string]string
	must(json.Unmarshal([]byte(described), &parts))
	must(json.Unmarshal(parts[0], &token))
	must(json.Unmarshal(parts[1], &options))
	if length, isNumber := token.(float64); isNumber {
		token = strings.Repeat("x", int(length))
	}
	about := func(name, otherwise string) string {
		if value, is := options[name]; is {
			return value
		}
		return otherwise
	}
	r := httptest.NewRequest(about("method", "GET"), about("path", "/"), nil)
	r.RemoteAddr = about("address", "192.0.2.9") + ":9"
	r.Header.Set("Authorization", "Bearer "+token.(string))
	headers := map[string]string{
		"accept": "Accept", "language": "Accept-Language", "ticket": "X-Headcount-Ticket", "upgrade": "Upgrade",
	}
	for option, header := range headers {
		if value, is := options[option]; is {
			r.Header.Set(header, value)
		}
	}
	return r
}

func ask(described string) string {
	answer := httptest.NewRecorder()
	if !Refused(answer, request(described)) {
		return "in"
	}
	_, err := strconv.Atoi(answer.Header().Get("Retry-After"))
	retries := map[bool]string{true: "True", false: "False"}[err == nil]
	return fmt.Sprintf("%d %s %.1s", answer.Code, retries, answer.Body)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func TestMain(*testing.M) {
	CheckURL = os.Getenv("HEADCOUNT_URL")
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	must(err)
	client.Timeout = time.Duration(seconds * float64(time.Second))
	if os.Args[2] == "callers" {
		callers, err := strconv.Atoi(os.Args[3])
		must(err)
		untilRefused(callers, os.Args[4])
		return
	}
	for _, described := range os.Args[2:] {
		fmt.Println(ask(described))
	}
}

// Each caller asks again and again until it is refused.
func untilRefused(callers int, described string) {
	var all sync.WaitGroup
	for ; callers > 0; callers-- {
		all.Add(1)
		go func() {
			defer all.Done()
			for ask(described) == "in" {
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	all.Wait()
}
