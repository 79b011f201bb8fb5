package testenv

import "testing"

// PG is a PostgreSQL server of one test's own. It writes as in production, fsync and all.
type PG struct {
	// URL is that of the empty database postgres, as the superuser; it stays the same through Kill and Start.
	URL string

	tb      testing.TB
	cluster *cluster
}

// PostgresServer starts a server and stops it when the test ends. It needs server binaries also when
// TEST_DATABASE_URL is set, since nobody lends a server to be killed. Settings are name=value, and win over those of a test.
func PostgresServer(tb testing.TB, settings ...string) *PG {
	tb.Helper()
	c, err := newCluster(settings...)
	if err != nil {
		tb.Fatalf("testenv: %v", err)
	}
	return own(tb, c)
}

// own removes the cluster when the test ends.
func own(tb testing.TB, c *cluster) *PG {
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
	c, err := p.cluster.follow()
	if err != nil {
		p.tb.Fatalf("testenv: standby: %v", err)
	}
	return own(p.tb, c)
}

// Kill ends the server and all its processes with SIGKILL, and returns when they are gone. Kill and Start report
// what goes wrong with Errorf, so that any goroutine may call them, though not two at a time.
func (p *PG) Kill() {
	p.tb.Helper()
	if err := p.cluster.process.kill(); err != nil {
		p.tb.Errorf("testenv: kill PostgreSQL: %v", err)
	}
}

// Start starts the killed server again, on the same port and data, and returns when it has recovered and takes
// connections.
func (p *PG) Start() {
	p.tb.Helper()
	if err := p.cluster.start(); err != nil {
		p.tb.Errorf("testenv: start PostgreSQL: %v", err)
	}
}
