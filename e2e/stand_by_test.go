package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// decides waits until exactly one worker decides, and returns it.
func decides(t testing.TB, workers map[*worker]bool) (decides *worker) {
	t.Helper()
	eventually(t, func() error {
		decides = nil
		for w := range workers {
			metrics, err := w.metrics()
			switch {
			case err != nil:
				return err
			case !strings.Contains(metrics, "\nlimits_deciding 1\n"):
			case decides != nil:
				return errors.New("two workers decide")
			default:
				decides = w
			}
		}
		if decides == nil {
			return errors.New("no worker decides")
		}
		return nil
	})
	return decides
}

// three starts three workers on one database, of which one decides.
func three(t *testing.T) (url string, env []string, workers map[*worker]bool) {
	t.Helper()
	url = testenv.NATS(t).ClientURL()
	env = []string{"DATABASE_URL=" + testenv.Postgres(t), "NATS_URL=" + url}
	workers = map[*worker]bool{}
	for range 3 {
		workers[start(t, env...)] = true
	}
	decides(t, workers)
	return url, env, workers
}

// TestWorkersTakeOver restarts the worker that decides, again and again, and then kills it, while many clients send requests.
// No request may fail because of a stop; a crash may fail only requests that the worker had, or that came before another one
// decided.
func TestWorkersTakeOver(t *testing.T) {
	t.Parallel()
	url, env, workers := three(t)
	const clients, keys = 8, 8
	var l load
	var all sync.WaitGroup
	all.Go(func() {
		l.run(t, url, clients, 1<<30, 5*time.Second, func(i int) string {
			return fmt.Sprintf(`{"key":"k:%d","limit":1000000000,"window":"1d"}`, i%keys)
		})
	})
	for range 3 {
		l.answersMore(t)
		w := decides(t, workers)
		w.terminate(t)
		delete(workers, w)
		workers[start(t, env...)] = true
	}
	l.answersMore(t)
	if l.failed.Load()+l.degraded.Load() > 0 {
		t.Errorf("while workers were restarted: %s", &l)
	}

	w := decides(t, workers)
	w.kill()
	delete(workers, w)
	l.answersMore(t)
	decides(t, workers)
	l.stopped.Store(true)
	all.Wait()
	t.Log(&l)
	if lost := l.failed.Load() - l.unheard.Load(); lost > clients || l.degraded.Load() > 0 {
		t.Errorf("%d clients had %d requests without an answer when a worker was killed: %s", clients, lost, &l)
	}
	l.addsUp(t, connect(t, url), keys)
}

// TestARevokedKeyIsUnknownToTheNextVerify: one worker handles both requests, so the verify does not depend on a broadcast.
func TestARevokedKeyIsUnknownToTheNextVerify(t *testing.T) {
	t.Parallel()
	url, _, _ := three(t)
	nc := connect(t, url)
	verify := func(key string) (r limits.VerifyReply) {
		msg := request(t, nc, limits.SubjectVerify, fmt.Sprintf(`{"apiKey":%q}`, key))
		if err := json.Unmarshal(msg.Data, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 50 {
		var key limits.CreateKeyReply
		msg, _ := admin(t, nc, limits.SubjectKeysCreate, `{"user":"ann"}`)
		if err := json.Unmarshal(msg.Data, &key); err != nil {
			t.Fatal(err)
		}
		if r := verify(key.APIKey); !r.Valid {
			t.Fatalf("a new key: %+v", r)
		}
		admin(t, nc, limits.SubjectKeysRevoke, fmt.Sprintf(`{"id":%q}`, key.Key.ID))
		if r := verify(key.APIKey); r.Valid {
			t.Fatalf("a revoked key: %+v", r)
		}
	}
}
