package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestClusterLosesServers stops two of the three servers of a NATS cluster, one after the other, while clients send requests:
// clients and workers go on with the rest, one worker decides, and the counters have what was answered.
func TestClusterLosesServers(t *testing.T) {
	t.Parallel()
	servers := testenv.NATSCluster(t)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.ClientURL())
	}
	url := strings.Join(urls, ",")
	env := []string{"DATABASE_URL=" + testenv.Postgres(t), "NATS_URL=" + url}
	workers := map[*worker]bool{start(t, env...): true, start(t, env...): true}
	const clients, keys = 6, 4
	var l load
	var all sync.WaitGroup
	all.Go(func() {
		l.run(t, url, clients, 1<<30, time.Second, func(i int) string {
			return fmt.Sprintf(`{"key":"k:%d","limit":1000000000,"window":"1d"}`, i%keys)
		})
	})
	for _, stop := range []func(){func() {}, servers[0].Shutdown, servers[1].Shutdown} {
		stop()
		l.answersMore(t)
		decides(t, workers)
	}
	l.stopped.Store(true)
	all.Wait()
	t.Log(&l)
	if l.degraded.Load() > 0 {
		t.Errorf("while servers were stopped: %s", &l)
	}
	l.addsUp(t, connect(t, url), keys)
}
