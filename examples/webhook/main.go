// Command webhook receives alerts on 127.0.0.1:9000 and prints them. It shows what every receiver should do: it verifies the
// signature over the unchanged body, refuses old messages, and recognizes messages that it has already received.
//
// The format is Standard Webhooks 1.0 (https://www.standardwebhooks.com).
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tolerance is how far a message's timestamp may be from now.
const tolerance = 5 * time.Minute

func main() {
	secret, err := readSecret(os.Getenv("HOOK_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("waiting for alerts on http://127.0.0.1:9000/")
	h := &hook{secret: secret, now: time.Now, out: os.Stdout, seen: map[string]bool{}}
	log.Fatal((&http.Server{Addr: "127.0.0.1:9000", Handler: h, ReadHeaderTimeout: 5 * time.Second}).ListenAndServe())
}

// readSecret parses whsec_ followed by a key of 24 to 64 bytes in base64, as Standard Webhooks defines it.
func readSecret(text string) ([]byte, error) {
	encoded, prefixed := strings.CutPrefix(text, "whsec_")
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !prefixed || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, errors.New("HOOK_SECRET is not whsec_ and the base64 of 24 to 64 bytes; " +
			`make one with: export HOOK_SECRET="whsec_$(openssl rand -base64 32)"`)
	}
	return key, nil
}

// hook is the receiver.
type hook struct {
	secret []byte
	now    func() time.Time
	out    io.Writer

	mu   sync.Mutex
	seen map[string]bool
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	id := r.Header.Get("webhook-id")
	if err := h.verify(id, r.Header.Get("webhook-timestamp"), r.Header.Get("webhook-signature"), body); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if h.first(id) {
		h.print(body)
	}
	w.WriteHeader(http.StatusNoContent)
}

// verify checks the timestamp of a message, and that one of its signatures is valid.
func (h *hook) verify(id, timestamp, signatures string, body []byte) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || h.now().Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return errors.New("the timestamp is missing, or too far from now")
	}
	mac := hmac.New(sha256.New, h.secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	want := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	for signature := range strings.FieldsSeq(signatures) { // there are several while the secret is rotated
		if hmac.Equal(want, []byte(signature)) {
			return nil
		}
	}
	return errors.New("no signature matches")
}

// first reports whether an id is new. A message that was not answered in time is sent again with the same id. A real
// receiver stores the ids in its database.
func (h *hook) first(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[id] {
		return false
	}
	h.seen[id] = true
	return true
}

func (h *hook) print(body []byte) {
	var m struct {
		Type string
		Data struct{ Title, Text, User, Note string }
	}
	if err := json.Unmarshal(body, &m); err != nil {
		fmt.Fprintln(h.out, "not JSON:", err)
		return
	}
	fmt.Fprintf(h.out, "%s %s: %s%s\n", m.Type, m.Data.User, m.Data.Title, m.Data.Note)
}
