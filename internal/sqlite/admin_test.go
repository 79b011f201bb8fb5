package sqlite

import (
	"testing"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/storetest"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	storetest.Keys(t, func(t *testing.T) keys.Store { return open(t, Config{}) })
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	storetest.Overrides(t, func(t *testing.T) overrides.Store { return open(t, Config{}) })
}

func TestPruneOverrides(t *testing.T) {
	t.Parallel()
	storetest.PruneOverrides(t, open(t, Config{}))
}

func TestJobs(t *testing.T) {
	t.Parallel()
	storetest.Jobs(t, func(t *testing.T) jobs.Store { return open(t, Config{}) })
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	storetest.Alerts(t, func(t *testing.T) alerts.Store { return open(t, Config{}) })
}

func BenchmarkTake(b *testing.B) { storetest.BenchmarkTake(b, open(b, Config{})) }
