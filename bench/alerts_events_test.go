package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// Events for the figures of alerts, and the receiver of the alerts.

// crossing is an event to be published.
type crossing struct{ user, policy int }

// crossings returns the events of so many users, in random order: each user is denied by 10 policies, every hundredth by 50.
// Each event raises an alert of its own.
func crossings(users int) (all []crossing) {
	for user := range users {
		policies := eventsEach
		if user%100 == 0 {
			policies = eventsHeavy
		}
		for policy := range policies {
			all = append(all, crossing{user, policy})
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// message returns the event in the form in which a limiter publishes it.
func (c crossing) message(run string) (*nats.Msg, error) {
	user, policy := fmt.Sprintf("user-%05d", c.user), fmt.Sprintf("policy-%d", c.policy)
	id := run + "-" + user + "-" + policy
	data, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "type": limits.EventExceeded, "source": "urn:limits", "subject": "api:" + user,
		"time": time.Now().UTC().Format(time.RFC3339Nano), "datacontenttype": "application/json",
		"data": limits.Exceeded{Key: "api:" + user, Name: "1m", Policy: policy, Limit: 10, Window: "1m",
			Reset: time.Now().Add(time.Minute).UnixMilli(), RetryAfter: 1000, Denied: 3, User: user},
	})
	return &nats.Msg{Subject: limits.EventExceeded, Data: data, Header: nats.Header{nats.MsgIdHdr: {id}}}, err
}

// publish publishes the events at a steady rate, and returns when the stream has acknowledged all.
func publish(ctx context.Context, js jetstream.JetStream, run string, all []crossing, rate float64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	began, acks := time.Now(), make([]jetstream.PubAckFuture, 0, len(all))
	for len(acks) < len(all) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		for len(acks) < len(all) && float64(len(acks)) < time.Since(began).Seconds()*rate {
			m, err := all[len(acks)].message(run)
			if err != nil {
				return err
			}
			ack, err := js.PublishMsgAsync(m, jetstream.WithStallWait(patience))
			if err != nil {
				return err
			}
			acks = append(acks, ack)
		}
	}
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return fmt.Errorf("publish an event: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// hook receives webhooks.
type hook struct {
	*httptest.Server
	mu sync.Mutex
	// times counts the messages of each id, and users the raised alerts of each user.
	times, users map[string]int
}

func newHook() *hook {
	h := &hook{times: map[string]int{}, users: map[string]int{}}
	h.Server = httptest.NewServer(h)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Type string
		Data struct{ User string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	id := r.Header.Get("webhook-id")
	h.times[id]++
	if h.times[id] == 1 && body.Type == limits.EventAlertRaised {
		h.users[body.Data.User]++
	}
}

// received returns how many different messages came, how many repeats, and the most alerts of one user.
func (h *hook) received() (messages, again, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.times {
		again += n - 1
	}
	for _, n := range h.users {
		most = max(most, n)
	}
	return len(h.times), again, most
}

// rules writes an alerts file that sends an alert about every denial to the receiver and to the stream.
func (h *hook) rules(dir string) (path string, err error) {
	path = filepath.Join(dir, "alerts.yaml")
	text := fmt.Sprintf(`channels:
  - {name: hook, webhook: {url: "%s/hook", secrets: "env:HOOK_SECRET"}}
rules:
  - {name: denials, threshold: {denials: 1, within: 10m}, resolveAfter: 1h, channels: [nats, hook]}
`, h.URL)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// hookEnv is an environment with which a process may send to the receiver.
func hookEnv() []string {
	return append(os.Environ(), "ALERTS_ALLOW=127.0.0.0/8", "HOOK_SECRET=whsec_"+strings.Repeat("c2VjcmV0", 5))
}
