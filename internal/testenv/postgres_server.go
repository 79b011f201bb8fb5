package testenv

import "testing"

// PG is a PostgreSQL server for one test. It writes with fsync, as in production.
type PG struct {
	// URL is the URL of the empty database postgres, as the superuser. Kill and Start do not change it.
	URL string

	tb      testing.TB
	cluster *cluster
}

// PostgresServer starts a server and stops it when the test ends. It needs server binaries even if TEST_DATABASE_URL is set,
// because that server must not be killed. Settings are name=value, and override the package's own.
func PostgresServer(tb testing.TB, settings ...string) *PG {
	tb.Helper()
	c, err := newCluster(settings...)
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	return newPG(tb, c)
}

// newPG returns the PG of a cluster, which is removed when the test ends.
func newPG(tb testing.TB, c *cluster) *PG {
	tb.Cleanup(func() {
		if err := c.remove(); err != nil {
			tb.Errorf("testenv: stop PostgreSQL: %v", err)
		}
	})
	return &PG{URL: c.url, tb: tb, cluster: c}
}

// Migrated makes the schema in its database postgres.
func (p *PG) Migrated() *PG {
	p.tb.Helper()
	if err := migrate(p.URL); err != nil {
		p.tb.Fatalf("testenv: %v", err)
	}
	return p
}

// Standby starts a server that follows this one and takes no writes, and stops it when the test ends.
func (p *PG) Standby() *PG {
	p.tb.Helper()
	c, err := p.cluster.newStandby()
	if err != nil {
		p.tb.Fatalf("testenv: standby: %v", err)
	}
	return newPG(p.tb, c)
}

// Kill ends the server and all its processes with SIGKILL, and returns when they are gone. Kill and Start report errors with
// Errorf, so that they may be called in any goroutine, but not concurrently.
func (p *PG) Kill() {
	p.tb.Helper()
	if err := p.cluster.process.kill(); err != nil {
		p.tb.Errorf("testenv: kill PostgreSQL: %v", err)
	}
}

// Start starts the killed server again with the same port and data, and returns when it has recovered and accepts
// connections.
func (p *PG) Start() {
	p.tb.Helper()
	if err := p.cluster.start(); err != nil {
		p.tb.Errorf("testenv: start PostgreSQL: %v", err)
	}
}
