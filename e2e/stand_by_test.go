package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/testenv"
)

// decides gives the one worker that decides, when only one does.
func decides(t testing.TB, workers map[*worker]bool) (decides *worker) {
	t.Helper()
	eventually(t, func() error {
		decides = nil
		for w := range workers {
			resp, err := http.Get("http://" + w.http + "/metrics")
			if err != nil {
				return err
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			switch {
			case err != nil:
				return err
			case !strings.Contains(string(body), "\nlimits_deciding 1\n"):
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

// TestWorkersTakeOver restarts the worker that decides, again and again, and then kills it, below the requests of many clients: a stop
// is noticed by nobody, and a crash by those alone whose requests were with the worker.
func TestWorkersTakeOver(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t, postgres.Migrate), testenv.NATS(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	workers := map[*worker]bool{}
	for range 3 {
		workers[start(t, env...)] = true
	}
	decides(t, workers)

	const clients = 8
	var allowed atomic.Int64
	var mu sync.Mutex
	var failed []error
	unheard := 0 // requests for which nobody listened, even after a while
	var all sync.WaitGroup
	stop := make(chan struct{})
	for i := range clients {
		client := limits.NewClient(connect(t, cluster.ClientURL()), limits.Timeout(5*time.Second))
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, err := client.Consume(t.Context(), limits.Per(fmt.Sprintf("k:%d", i), 1_000_000_000, "1d"))
				if err == nil && r.Allowed && !r.Degraded {
					allowed.Add(1)
					continue
				}
				mu.Lock()
				if e, is := errors.AsType[*limits.Error](err); is && e.Code == limits.CodeUnavailable {
					unheard++
				} else {
					failed = append(failed, fmt.Errorf("%+v: %w", r, err))
				}
				mu.Unlock()
			}
		})
	}
	answersMore := func() {
		t.Helper()
		before := allowed.Load()
		eventually(t, func() error {
			if n := allowed.Load() - before; n < 500 {
				return fmt.Errorf("%d requests answered", n)
			}
			return nil
		})
	}
	for range 3 {
		answersMore()
		w := decides(t, workers)
		w.terminate(t)
		delete(workers, w)
		workers[start(t, env...)] = true
	}
	answersMore()
	mu.Lock()
	if len(failed)+unheard > 0 {
		t.Errorf("%d requests failed while workers were restarted, and %d were not heard: %v", len(failed), unheard, failed)
	}
	failed = nil
	mu.Unlock()

	w := decides(t, workers)
	w.kill()
	delete(workers, w)
	answersMore()
	decides(t, workers)
	close(stop)
	all.Wait()
	if len(failed) > clients {
		t.Errorf("%d requests of %d clients failed when a worker was killed, the first: %v", len(failed), clients, failed[0])
	}
	t.Logf("killed: %d requests failed, %d were not heard", len(failed), unheard)
	nc, charged := connect(t, cluster.ClientURL()), int64(0)
	for i := range clients {
		charged += used(t, nc, fmt.Sprintf("k:%d", i))
	}
	if charged < allowed.Load() || charged > allowed.Load()+int64(len(failed)) {
		t.Errorf("%d charged, %d answered and %d not", charged, allowed.Load(), len(failed))
	}
}

// TestARevokedKeyIsUnknownToTheNextVerify: one worker of several takes both, so nothing is on its way between workers.
func TestARevokedKeyIsUnknownToTheNextVerify(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t, postgres.Migrate), testenv.NATS(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	workers := map[*worker]bool{}
	for range 3 {
		workers[start(t, env...)] = true
	}
	decides(t, workers)
	nc := connect(t, cluster.ClientURL())
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
