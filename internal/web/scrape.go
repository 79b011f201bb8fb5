package web

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// shareFor is for how long after its begin a gathering is shared.
	shareFor = time.Second
	// maxCompressed bounds the answers that are compressed at the same time, because each takes most of a megabyte.
	maxCompressed = 4
)

// scrapes serves the metrics. A scrape shares the last gathering if that is still used and began less than shareFor ago. So
// clients that do not read, each of which uses a gathering until WriteTimeout, hold one for each second of that at most, and
// nobody else waits for them.
type scrapes struct {
	registry *prometheus.Registry
	log      *slog.Logger

	mu   sync.Mutex
	last *gathering // nil while nobody uses it
	// inProgress is how many scrapes there are.
	inProgress int
}

// gathering is the values of all metrics. Its Gather returns the same ones each time.
type gathering struct {
	prometheus.Gatherer
	began time.Time
	done  chan struct{} // closed when Gather no longer waits
	users int           // guarded by scrapes.mu
}

func (g *gathering) gather() {
	defer close(g.done)
	_, _ = g.Gather() // the error is returned to each user
}

func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g, compress := s.join()
	defer s.leave(g)
	<-g.done
	if _, err := g.Gather(); err != nil {
		s.log.Warn("read the metrics", "error", err)
	}
	promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true, DisableCompression: !compress}).ServeHTTP(w, r)
}

func (s *scrapes) join() (g *gathering, compress bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || time.Since(s.last.began) >= shareFor {
		s.last = &gathering{Gatherer: prometheus.GathererFunc(sync.OnceValues(s.registry.Gather)), began: time.Now(), done: make(chan struct{})}
		go s.last.gather()
	}
	s.last.users++
	s.inProgress++
	return s.last, s.inProgress <= maxCompressed
}

func (s *scrapes) leave(g *gathering) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.users--
	s.inProgress--
	if g.users == 0 && g == s.last {
		s.last = nil
	}
}
