package testenv

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// NATSCluster starts a cluster of three NATS servers with JetStream inside the test process, on free ports, and stops them
// when the test ends. It returns when streams with three replicas can be created.
func NATSCluster(tb testing.TB) []*natsserver.Server {
	tb.Helper()
	servers := make([]*natsserver.Server, 3)
	// Each must know the others before it starts: JetStream refuses a cluster without routes.
	ports, err := freePorts(len(servers))
	if err != nil {
		tb.Fatalf("testenv: start NATS: %v", err)
	}
	var routes []*url.URL
	for _, port := range ports {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	for i := range servers {
		servers[i] = startServer(tb, local(&natsserver.Options{
			ServerName: fmt.Sprintf("n%d", i), Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: tb.TempDir(),
			Cluster: natsserver.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]},
			Routes:  routes,
		}))
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		for _, s := range servers {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(servers) {
				return waitReady(tb, servers...)
			}
		}
		if time.Since(began) > patience {
			tb.Fatalf("testenv: start NATS: the cluster has no leader after %s", patience)
		}
	}
}
