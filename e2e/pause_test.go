//go:build unix

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestSuspendedWorkerResumes: a worker that was suspended does not take the pause for a failure of the store. It
// finishes the requests that it had, and the other worker is not held up for long.
func TestSuspendedWorkerResumes(t *testing.T) {
	t.Parallel()
	db, cluster := testenv.Postgres(t), testenv.NATS(t)
	env := []string{"DATABASE_URL=" + db, "NATS_URL=" + cluster.ClientURL()}
	stopped := start(t, env...)
	start(t, env...)
	const some = 2000
	sent := make(chan struct{}, 1)
	body := func(i int) string { // each is written to the store, so that there is always a transaction in progress
		if i%some == some-1 {
			select {
			case sent <- struct{}{}:
			default:
			}
		}
		return fmt.Sprintf(`{"limits":[{"key":"k:%d","limit":1000000,"window":"1h"}]}`, i%8)
	}
	var l load
	var all sync.WaitGroup
	all.Go(func() { l.run(t, cluster.ClientURL(), 32, 1<<30, 10*time.Second, body) })
	// goesOn waits until many requests were answered, which needs both workers: soon all clients would wait for a suspended one.
	goesOn := func() {
		for range 2 { // the first signal may be from before
			select {
			case <-sent:
			case <-time.After(patience):
				t.Fatal("no requests are sent any more")
			}
		}
	}
	for range 4 {
		goesOn()
		signal(t, stopped, syscall.SIGSTOP)
		time.Sleep(1800 * time.Millisecond) // a pause longer than a transaction may take
		signal(t, stopped, syscall.SIGCONT)
	}
	goesOn()
	l.stopped.Store(true)
	all.Wait()
	if l.degraded.Load() > 0 || l.failed.Load() > 0 {
		t.Error(&l)
	}
	if strings.Contains(stopped.log(), "the store is failing") { // as a test of internal/app has it, too
		t.Errorf("the worker that was suspended takes the pause for a failure of the store:\n%s", stopped.log())
	}
	l.addsUp(t, connect(t, cluster.ClientURL()), 8)
}
