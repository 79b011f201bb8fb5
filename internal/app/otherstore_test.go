package app

import (
	"net/http"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/testenv"
)

const otherStore = "uses a different store"

// serving runs a limiter on a NATS server, and returns its log when it is ready.
func serving(t *testing.T, natsURL, databaseURL string) *watcher {
	t.Helper()
	o := options(t)
	o.NATSURL, o.DatabaseURL = natsURL, databaseURL
	return running(t, Run, o).log
}

// readiness returns a limiter's answer to /readyz.
func readiness(t *testing.T, log *watcher) (ready bool, why string) {
	t.Helper()
	status, body := get(t, "http://"+log.at["http"]+"/readyz")
	return status == http.StatusOK, body
}

func TestLimitersWithDifferentStoresAreNotReady(t *testing.T) {
	t.Parallel()
	natsURL, databaseURL := testenv.NATS(t).ClientURL(), testenv.Postgres(t)
	first, second := serving(t, natsURL, databaseURL), serving(t, natsURL, databaseURL)
	for _, log := range []*watcher{first, second} {
		if text := log.String(); strings.Contains(text, otherStore) {
			t.Errorf("two on one database:\n%s", text)
		}
	}
	for _, log := range []*watcher{first, second} {
		if ready, why := readiness(t, log); !ready {
			t.Errorf("two on one database: %s", why)
		}
	}
	third := serving(t, natsURL, "")
	for _, log := range []*watcher{first, second, third} {
		log.await(t, otherStore)
		if ready, why := readiness(t, log); ready || !strings.Contains(why, otherStore) {
			t.Errorf("beside another store: %s", why)
		}
	}
	copied := serving(t, natsURL, testenv.Postgres(t))
	copied.await(t, otherStore)
}
