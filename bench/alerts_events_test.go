package bench

import (
	"context"
	"encoding/json"
	"errors"
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

// Events for the figures of alerts, and who is told of them.

// crossing is an event to be published.
type crossing struct{ user, policy int }

// crossings are those of so many users, in any order: each is denied by 10 policies, and every hundredth by 50. Each is an
// alert of its own.
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

// message is an event as a limiter publishes it.
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

// publish puts the events into the stream at a steady rate, and returns when it has all.
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

// hook takes webhooks.
type hook struct {
	*httptest.Server
	mu sync.Mutex
	// times is how often each id came, and users how many ids each user has.
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

// told gives how many messages came, how many of them again, and how many alerts the user had who had the most.
func (h *hook) told() (messages, again, most int) {
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

// rules writes an alerts file that tells the receiver and the stream of every denial.
func (h *hook) rules(dir string) (path string, err error) {
	path = filepath.Join(dir, "alerts.yaml")
	text := fmt.Sprintf(`channels:
  - {name: hook, webhook: {url: "%s/hook", secrets: "env:HOOK_SECRET"}}
rules:
  - {name: denials, threshold: {denials: 1, within: 10m}, resolveAfter: 1h, channels: [nats, hook]}
`, h.URL)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// hookEnv lets a process reach the receiver.
func hookEnv() []string {
	return append(os.Environ(), "ALERTS_ALLOW=127.0.0.0/8", "HOOK_SECRET=whsec_"+strings.Repeat("c2VjcmV0", 5))
}

// forgetAlerts drops what a run has left in NATS.
func (d *bed) forgetAlerts() error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	if err := d.js.DeleteStream(ctx, limits.AlertStream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("drop the stream %s: %w", limits.AlertStream, err)
	}
	return d.forgetEvents()
}
