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
		before := l.allowed.Load()
		eventually(t, func() error {
			if n := l.allowed.Load() - before; n < 500 {
				return fmt.Errorf("%d requests allowed: %s", n, &l)
			}
			return nil
		})
		decides(t, workers)
	}
	l.stopped.Store(true)
	all.Wait()
	t.Log(&l)
	nc, charged := connect(t, url), int64(0)
	for i := range keys {
		charged += used(t, nc, fmt.Sprintf("k:%d", i))
	}
	if charged < l.allowed.Load() || charged > l.allowed.Load()+l.failed.Load()-l.unheard.Load() || l.degraded.Load() > 0 {
		t.Errorf("%d charged: %s", charged, &l)
	}
}
