package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// schedules is how many crashes TestAlertsSurviveCrashes tries: a few by default, hundreds with make crashes.
var schedules = flag.Int("schedules", 5, "how many crashes the tests of alerts try")

// receiver receives webhooks.
type receiver struct {
	url string
	// refuse, if set, is the status with which all webhooks are refused. Refused ones are not recorded.
	refuse atomic.Int32

	mu sync.Mutex
	// messages has the bodies by webhook-id, and times how often each came.
	messages map[string]webhookBody
	times    map[string]int
}

type webhookBody struct {
	Type string
	Data struct {
		Alert, Digest, User, Policy, Title string
		Alerts, Denied                     int64
	}
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{messages: map[string]webhookBody{}, times: map[string]int{}}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body webhookBody
	err := json.NewDecoder(req.Body).Decode(&body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if status := r.refuse.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	id := req.Header.Get("webhook-id")
	if err != nil || id == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if before, again := r.messages[id]; again && before != body {
		w.WriteHeader(http.StatusConflict)
		return
	}
	r.messages[id] = body
	r.times[id]++
}

// raised returns how many alerts of a user came, by policy.
func (r *receiver) raised(user string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	policies := map[string]int{}
	for _, m := range r.messages {
		if m.Type == limits.EventAlertRaised && m.Data.User == user {
			policies[m.Data.Policy]++
		}
	}
	return policies
}

// digested returns how many digests of a user came, and how many alerts they include.
func (r *receiver) digested(user string) (digests int, alerts int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.messages {
		if m.Type == limits.EventAlertDigest && m.Data.User == user {
			digests, alerts = digests+1, alerts+m.Data.Alerts
		}
	}
	return digests, alerts
}

// each returns the messages of one type, by id.
func (r *receiver) each(kind string) map[string]webhookBody {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]webhookBody{}
	for id, m := range r.messages {
		if m.Type == kind {
			found[id] = m
		}
	}
	return found
}

// repeated returns how many messages came more than once.
func (r *receiver) repeated() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.times {
		if times > 1 {
			n++
		}
	}
	return n
}

// alertsText returns an alerts file whose rule sends an alert about every denial to a path of the receiver. more is added to
// the rule.
func alertsText(r *receiver, path, more string) string {
	return fmt.Sprintf(`channels:
  - name: hook
    webhook: {url: "%s/%s", secrets: ["env:HOOK_SECRET"]}
rules:
  - name: denials
    threshold: {denials: 1, within: 10m}
    channels: [hook]
%s`, r.url, path, more)
}

// alerterEnv returns the settings of an alerter that may send to a receiver.
func alerterEnv(file string) []string {
	return []string{"ALERTS=" + file, "ALERTS_ALLOW=127.0.0.0/8", "HOOK_SECRET=whsec_" + strings.Repeat("c2VjcmV0", 5)}
}

// publishEvents publishes denials of a user, one for each policy. It retries until the stream has acknowledged all.
func publishEvents(ctx context.Context, js jetstream.JetStream, user string, policies int) error {
	for i := range policies {
		policy := fmt.Sprintf("policy-%d", i)
		id := user + "-" + policy
		data, err := json.Marshal(map[string]any{
			"specversion": "1.0", "id": id, "type": limits.EventExceeded, "source": "urn:limits", "subject": "api:" + user,
			"time": time.Now().UTC().Format(time.RFC3339Nano), "datacontenttype": "application/json",
			"data": limits.Exceeded{Key: "api:" + user, Name: "1m", Policy: policy, Limit: 10, Window: "1m",
				Reset: time.Now().Add(time.Minute).UnixMilli(), RetryAfter: 1000, Denied: 3, User: user},
		})
		if err != nil {
			return err
		}
		m := &nats.Msg{Subject: limits.EventExceeded, Data: data, Header: nats.Header{nats.MsgIdHdr: {id}}}
		for {
			try, cancel := context.WithTimeout(ctx, 2*time.Second)
			_, err := js.PublishMsg(try, m)
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			<-time.After(20 * time.Millisecond) // the server may be down
		}
	}
	return nil
}

// site is a limiter and alerters, with servers that can be killed.
type site struct {
	db       *testenv.PG
	cluster  *testenv.NATSProc
	env      []string
	alerters []*worker
	hook     *receiver
}

func newSite(t *testing.T, alerters int) *site {
	s := &site{db: testenv.PostgresServer(t).Migrated(), cluster: testenv.NATSServer(t), hook: newReceiver(t)}
	s.env = append([]string{"DATABASE_URL=" + s.db.URL, "NATS_URL=" + s.cluster.URL}, alerterEnv(yamlFile(t, alertsText(s.hook, "hook", "")))...)
	start(t, s.env...)
	for range alerters {
		s.alerters = append(s.alerters, startAlerter(t, s.env...))
	}
	return s
}

// crash waits for a moment, then kills PostgreSQL, NATS or an alerter, and starts it again.
func (s *site) crash(t *testing.T, rnd *rand.Rand) string {
	<-time.After(time.Duration(rnd.IntN(300)) * time.Millisecond)
	switch rnd.IntN(4) {
	case 0:
		s.db.Kill()
		s.db.Start()
		return "PostgreSQL"
	case 1:
		s.cluster.Kill()
		s.cluster.Start()
		return "NATS"
	default:
		i := rnd.IntN(len(s.alerters))
		s.alerters[i].kill()
		s.alerters[i] = startAlerter(t, s.env...)
		return "alerter"
	}
}

// throttled is how many alerts the throttle allows a user.
const throttled = 20

// TestAlertsSurviveCrashes kills the alerters, NATS and PostgreSQL while events become alerts. Of each user's alerts the
// first 20 must be sent, each under one id, and the digest must include all others.
func TestAlertsSurviveCrashes(t *testing.T) {
	t.Parallel()
	s := newSite(t, 2)
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	nc := connect(t, s.cluster.URL)
	js := testenv.JetStream(t, nc)
	const policies = throttled + 3
	killed, repeats := map[string]int{}, 0
	users := names("user", *schedules)
	for _, user := range users {
		published := make(chan error, 1)
		go func() { published <- publishEvents(t.Context(), js, user, policies) }()
		killed[s.crash(t, rnd)]++
		if err := <-published; err != nil {
			t.Fatal(err)
		}
	}
	// Another process handles the claims of a killed one when they end.
	for _, user := range users {
		eventually(t, func() error {
			if got := s.hook.raised(user); len(got) != throttled {
				return fmt.Errorf("killed %v: %d alerts of %s came, want %d", killed, len(got), user, throttled)
			}
			return nil
		})
	}
	digested(t, limits.NewClient(nc, limits.Timeout(patience)), s.hook, users, policies-throttled)
	for _, user := range users {
		for policy, n := range s.hook.raised(user) {
			if n != 1 {
				t.Errorf("%d alerts of %s and %s under different ids", n, user, policy)
			}
		}
		if got := len(s.hook.raised(user)); got != throttled {
			t.Errorf("%d alerts of %s, want %d", got, user, throttled)
		}
	}
	for _, n := range s.hook.times {
		repeats += n - 1
	}
	t.Logf("%d crashes: %v; %d deliveries came twice under the same id", *schedules, killed, repeats)
}

// digested runs the job of digests until those of all users include held alerts each.
func digested(t *testing.T, client *limits.Client, hook *receiver, users []string, held int) {
	t.Helper()
	eventually(t, func() error {
		if _, err := client.RunJob(t.Context(), "alerts-digest"); err != nil && !running(err) {
			return err
		}
		for _, user := range users {
			if digests, alerts := hook.digested(user); alerts != int64(held) {
				return fmt.Errorf("%d digests tell of %d alerts of %s, want %d", digests, alerts, user, held)
			}
		}
		return nil
	})
}
