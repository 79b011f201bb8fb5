package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// load sends requests with many clients at once, and counts the answers. unheard counts those of failed that got "no
// responders" from the server.
type load struct {
	allowed, denied, degraded, failed, unheard atomic.Int64
	stopped                                    atomic.Bool
}

// run sends n requests over so many connections; body returns the i-th.
func (l *load) run(t testing.TB, url string, clients, n int, wait time.Duration, body func(i int) string) {
	t.Helper()
	var next atomic.Int64
	var done sync.WaitGroup
	for range clients {
		nc := connect(t, url)
		done.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !l.stopped.Load(); i = int(next.Add(1)) - 1 {
				l.count(try(nc, limits.SubjectConsume, body(i), wait))
			}
		})
	}
	done.Wait()
}

func (l *load) count(r limits.Reply, err error) {
	switch {
	case err != nil:
		l.failed.Add(1)
		if errors.Is(err, nats.ErrNoResponders) {
			l.unheard.Add(1)
		}
	case r.Degraded:
		l.degraded.Add(1)
	case r.Allowed:
		l.allowed.Add(1)
	default:
		l.denied.Add(1)
	}
}

// waitAllowed waits until n requests were allowed, or the load is stopped.
func (l *load) waitAllowed(n int64) {
	for l.allowed.Load() < n && !l.stopped.Load() {
		<-time.After(time.Millisecond)
	}
}

// answersMore waits until 500 more requests were allowed.
func (l *load) answersMore(t testing.TB) {
	t.Helper()
	before := l.allowed.Load()
	eventually(t, func() error {
		if n := l.allowed.Load() - before; n < 500 {
			return fmt.Errorf("%d requests allowed: %s", n, l)
		}
		return nil
	})
}

// addsUp compares what keys k:0 to k:n-1 have used with the answers: what got none may have been charged, unless it was unheard.
func (l *load) addsUp(t testing.TB, nc *nats.Conn, n int) {
	t.Helper()
	charged := int64(0)
	for i := range n {
		charged += used(t, nc, fmt.Sprintf("k:%d", i))
	}
	if charged < l.allowed.Load() || charged > l.allowed.Load()+l.failed.Load()-l.unheard.Load() {
		t.Errorf("%d charged: %s", charged, l)
	}
}

func (l *load) String() string {
	return fmt.Sprintf("%d allowed, %d denied, %d degraded, %d failed, of these %d unheard",
		l.allowed.Load(), l.denied.Load(), l.degraded.Load(), l.failed.Load(), l.unheard.Load())
}

// used returns what the store has counted for a key, over all of its counters.
func used(t testing.TB, nc *nats.Conn, key string) (sum int64) {
	t.Helper()
	var status limits.Status
	if err := json.Unmarshal(request(t, nc, limits.SubjectStatus, fmt.Sprintf(`{"key":%q}`, key)).Data, &status); err != nil {
		t.Fatal(err)
	}
	for _, c := range status.Counters {
		sum += c.Used
	}
	return sum
}

// natsWithoutLead starts a NATS server on which workers cannot ask whether to stand by, so all of them decide.
func natsWithoutLead(t testing.TB) *natsserver.Server {
	t.Helper()
	return testenv.NATSConfig(t, `
jetstream {}
authorization { users: [{user: w, password: w, permissions: {publish: {deny: "limits.internal.lead.>"}, subscribe: {deny: "limits.internal.lead.>"}}}] }
no_auth_user: w`)
}

func TestFourWorkersAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), natsWithoutLead(t)
	for range 4 {
		start(t, "DATABASE_URL="+db, "NATS_URL="+cluster.ClientURL())
	}
	const limit, clients = 10_000, 64
	var l load
	l.run(t, cluster.ClientURL(), clients, limit+2000, patience, func(int) string {
		return `{"key":"api:user:1","limit":10000,"window":"1h"}`
	})
	if l.allowed.Load() != limit || l.denied.Load() != 2000 {
		t.Errorf("%s; want exactly %d allowed", &l, limit)
	}
	nc := connect(t, cluster.ClientURL())
	if got := used(t, nc, "api:user:1"); got != limit {
		t.Errorf("%d used, want %d", got, limit)
	}
}

func TestKillingAWorkerLosesNoChargeThatWasAnswered(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), testenv.NATS(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	victim := start(t, env...) // which decides
	start(t, env...)
	const limit = 3000
	var l load
	go func() {
		l.waitAllowed(500)
		victim.kill()
	}()
	l.run(t, cluster.ClientURL(), 32, limit+500, 2*time.Second, func(int) string {
		return `{"key":"k","limit":3000,"window":"1h"}`
	})
	t.Log(&l)
	nc := connect(t, cluster.ClientURL())
	if got := used(t, nc, "k"); got < l.allowed.Load() || got > limit {
		t.Errorf("%d used after %s: what was answered must stand, and never more than %d", got, &l, limit)
	}
	if l.allowed.Load() > limit {
		t.Errorf("%s: more than %d", &l, limit)
	}
}

func TestKillingAllInOneLosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	env := []string{"DATA_DIR=" + filepath.Join(t.TempDir(), "data")}
	const limit, crashes = 600, 3
	body := fmt.Sprintf(`{"key":"k","limit":%d,"window":"1h"}`, limit)
	var allowed int64
	for range crashes {
		w := start(t, env...)
		var l load
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			l.waitAllowed(100)
			w.kill()
			l.stopped.Store(true)
		}()
		l.run(t, w.nats, 8, limit/crashes, time.Second, func(int) string { return body }) // on a busy machine the kill comes after it
		l.stopped.Store(true)
		<-killed
		allowed += l.allowed.Load()
	}
	w := start(t, env...)
	nc := connect(t, w.nats)
	if got := used(t, nc, "k"); got < allowed || got > limit {
		t.Errorf("%d used after three crashes, %d allowed: what was answered must stand, and never more than %d", got, allowed, limit)
	}
	for r := (limits.Reply{Allowed: true}); r.Allowed; r = decide(t, nc, limits.SubjectConsume, body) {
		allowed++
	}
	if allowed-1 > limit {
		t.Errorf("%d allowed over all, more than %d", allowed-1, limit)
	}
	// The denial's event is published from the outbox, and stays in the stream over one more crash.
	eventually(t, func() error {
		keys, err := exceededKeys(t, nc)
		if err == nil && keys["k"] != 1 {
			err = fmt.Errorf("%d events", keys["k"])
		}
		return err
	})
	w.kill()
	if keys, err := exceededKeys(t, connect(t, start(t, env...).nats)); err != nil || keys["k"] != 1 {
		t.Errorf("after a crash: %v %v", keys, err)
	}
}

func TestAnIDIsChargedOnceAcrossCrashes(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), testenv.NATS(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	victim := start(t, env...) // which decides
	start(t, env...)
	const n, clients = 400, 16
	var killed sync.Once
	var next atomic.Int64
	var done sync.WaitGroup
	for range clients {
		nc := connect(t, cluster.ClientURL())
		done.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				body := fmt.Sprintf(`{"key":"k","limit":1000000,"window":"1h","id":"request-%d"}`, i)
				// A client repeats a request without an answer under the same id. Send it again after an answer too.
				for answered := 0; answered < 2; {
					if r, err := try(nc, limits.SubjectConsume, body, time.Second); err == nil && !r.Degraded {
						answered++
					}
				}
				if i == n/3 {
					killed.Do(victim.kill)
				}
			}
		})
	}
	done.Wait()
	nc := connect(t, cluster.ClientURL())
	if got := used(t, nc, "k"); got != n {
		t.Errorf("%d used after %d ids, each asked at least twice", got, n)
	}
}

func TestKillingPostgreSQLLosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.PostgresServer(t).Migrated(), testenv.NATS(t)
	env := []string{"DATABASE_URL=" + db.URL, "NATS_URL=" + cluster.ClientURL(), "ON_ERROR=deny"}
	start(t, env...)
	start(t, env...)
	var l load
	crashed := make(chan struct{})
	go func() {
		defer close(crashed)
		l.waitAllowed(300)
		db.Kill()
		for l.degraded.Load() == 0 { // the crash is felt
			<-time.After(time.Millisecond)
		}
		db.Start()
		back := time.Now()
		before := l.allowed.Load()
		for l.allowed.Load() < before+100 {
			if time.Since(back) > patience {
				t.Errorf("no service %s after PostgreSQL is back: %s", patience, &l)
				break
			}
			<-time.After(time.Millisecond)
		}
		t.Logf("service again %s after PostgreSQL's return: %s", time.Since(back).Round(time.Millisecond), &l)
		l.stopped.Store(true)
	}()
	l.run(t, cluster.ClientURL(), 16, 1<<30, patience, func(i int) string {
		return fmt.Sprintf(`{"key":"k:%d","limit":1000000,"window":"1h"}`, i%10)
	})
	<-crashed
	nc := connect(t, cluster.ClientURL())
	var sum int64
	for i := range 10 {
		sum += used(t, nc, fmt.Sprintf("k:%d", i))
	}
	// A charge may be stored whose answer was lost, but no answered charge may be lost.
	if sum < l.allowed.Load() {
		t.Errorf("%d used, %s: a charge that was answered is lost", sum, &l)
	}
}

// exceededKeys reads the keys of all exceeded events in the stream, and how often each came.
func exceededKeys(t testing.TB, nc *nats.Conn) (map[string]int, error) {
	t.Helper()
	consumer, err := testenv.JetStream(t, nc).OrderedConsumer(t.Context(), limits.EventStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{limits.EventExceeded},
	})
	if err != nil {
		return nil, err
	}
	keys := map[string]int{}
	for {
		batch, err := consumer.FetchNoWait(1000)
		if err != nil {
			return nil, err
		}
		n := 0
		for msg := range batch.Messages() {
			n++
			var event struct{ Data limits.Exceeded }
			if err := json.Unmarshal(msg.Data(), &event); err != nil {
				return nil, err
			}
			keys[event.Data.Key]++
		}
		if n == 0 {
			return keys, batch.Error()
		}
	}
}

func TestEventsSurviveTheCrashOfNATSAndOfTheWorker(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), testenv.NATSServer(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.URL}
	victim := start(t, env...) // which decides
	start(t, env...)
	nc := connect(t, cluster.URL)
	// Exceed each key once: an allowed request, then a denied one.
	const keys = 300
	denied := map[string]bool{}
	for i := range keys {
		key := fmt.Sprintf("k:%d", i)
		body := fmt.Sprintf(`{"key":%q,"limit":1,"window":"1h"}`, key)
		for !denied[key] {
			r, err := try(nc, limits.SubjectConsume, body, 10*time.Second) // who is denied twice is told of twice, in the end
			denied[key] = err == nil && !r.Allowed && !r.Degraded
		}
		switch i {
		case keys / 4:
			victim.kill()
		case keys / 2:
			cluster.Kill()
			cluster.Start()
		}
	}
	eventually(t, func() error {
		got, err := exceededKeys(t, nc)
		if err != nil {
			return err
		}
		for key := range denied {
			if got[key] == 0 {
				return fmt.Errorf("no event for %s; %d of %d keys", key, len(got), keys)
			}
			if got[key] > 1 {
				t.Fatalf("%d events for %s within 10 s: a repeat must be dropped by its id", got[key], key)
			}
		}
		return nil
	})
}

func TestSIGTERMAnswersEveryRequestThatWasTaken(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env []string) {
		// The embedded server stops with its worker, so watch the drain on another server.
		if len(env) == 0 {
			env = []string{"NATS_URL=" + testenv.NATS(t).ClientURL()}
		}
		w := start(t, env...)
		nc := connect(t, w.nats)
		inbox := nats.NewInbox()
		var answers atomic.Int64
		if _, err := nc.Subscribe(inbox, func(m *nats.Msg) {
			if len(m.Data) > 0 {
				answers.Add(1)
			}
		}); err != nil {
			t.Fatal(err)
		}
		const n = 2000
		for i := range n {
			if err := nc.PublishRequest(limits.SubjectConsume, inbox, fmt.Appendf(nil, `{"key":"k:%d","limit":1000000,"window":"1h"}`, i%50)); err != nil {
				t.Fatal(err)
			}
		}
		// After the flush the server has delivered all of them to the worker.
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		w.terminate(t)
		eventually(t, func() error {
			if err := nc.Flush(); err != nil {
				return err
			}
			if got := answers.Load(); got != n {
				return fmt.Errorf("%d of %d requests answered", got, n)
			}
			return nil
		})
	})
}

// TestClosedLogPipeDoesNotStopTheLimiter: lines of the log are lost, but requests are answered and the stop drains as usual.
func TestClosedLogPipeDoesNotStopTheLimiter(t *testing.T) {
	t.Parallel()
	env := deployments[1].env(t)
	for name, c := range map[string]struct {
		start         func(t testing.TB, env ...string) *worker
		subject, body string
	}{
		"limiter": {start, limits.SubjectConsume, `{"key":"k","limit":2,"window":"1h"}`},
		"alerter": {startAlerter, limits.SubjectJobsList, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.start(t, env...)
			if err := w.out.Close(); err != nil {
				t.Fatal(err)
			}
			signal(t, w, syscall.SIGHUP) // which is logged
			request(t, connect(t, w.nats), c.subject, c.body)
			w.terminate(t)
		})
	}
}
