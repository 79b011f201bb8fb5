// Package web is the HTTP server of a worker: liveness, readiness, metrics, a dashboard of the metrics, and the JSON Schemas
// of events and endpoints. It is read-only and makes no rate limiting decisions.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// stopTimeout bounds how long a stop waits for clients to read their answers.
const stopTimeout = 2 * time.Second

// Config configures a [Server].
type Config struct {
	// Addr is host:port to listen on; port 0 picks a free one, which [Server.Addr] returns. Required.
	Addr string
	// Ready checks every part that requests need. It returns nil, or why the part is not ready, by the part's name. It
	// should return when ctx ends, after 2 s. If Ready is nil the worker is always ready.
	Ready func(ctx context.Context) map[string]error
	// Registry has the metrics of /metrics; required.
	Registry *prometheus.Registry
	// Schemas are the files below /schemas/; nil for none.
	Schemas fs.FS
	// Logger is required.
	Logger *slog.Logger
}

// Server serves over HTTP.
type Server struct {
	cfg      Config
	http     *http.Server
	listener net.Listener
	draining atomic.Bool
	checks   singleflight.Group
	served   sync.WaitGroup
}

// New returns a server; Listen starts it.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Registry == nil:
		return nil, errors.New("web: Registry is missing")
	case cfg.Logger == nil:
		return nil, errors.New("web: Logger is missing")
	}
	s := &Server{cfg: cfg}
	h, err := s.handler()
	if err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
	return s, nil
}

func (s *Server) handler() (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { text(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", &scrapes{registry: s.cfg.Registry, log: s.cfg.Logger})
	if s.cfg.Schemas != nil {
		h, err := newSchemas(s.cfg.Schemas)
		if err != nil {
			return nil, err
		}
		mux.Handle("GET /schemas/", h)
	}
	page, err := newDashboard(s.cfg.Registry, s.readiness)
	if err != nil {
		return nil, err
	}
	mux.Handle("GET /{$}", page)
	return secure(mux), nil
}

// secure sets the security header of every answer.
func secure(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprint(w, s)
}

// Listen listens, and serves in the background until Shutdown. It returns an error if the address cannot be listened on.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("serve HTTP on %s: %w; choose another address with --http (port 0 picks a free one, off turns HTTP off)", s.cfg.Addr, err)
	}
	s.serve(l)
	return nil
}

func (s *Server) serve(l net.Listener) {
	s.listener = l
	s.served.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.cfg.Logger.Error("serve HTTP", "error", err)
		}
	})
}

// Addr returns the address on which the server listens; empty before Listen.
func (s *Server) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// SetDraining makes /readyz answer 503 from now on, so that load balancers stop using the worker before it stops.
func (s *Server) SetDraining() { s.draining.Store(true) }

// Shutdown waits for the requests in progress and stops the server. When ctx or stopTimeout ends first it cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
	}
	s.served.Wait()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // no failure of the stop: it is mostly a client that does not read
		s.cfg.Logger.Warn("HTTP connections were cut off: their clients had not read the answers in time")
		return nil
	}
	return fmt.Errorf("stop HTTP: %w", err)
}

// readiness is the body of /readyz.
type readiness struct {
	Ready bool `json:"ready"`
	// Checks has "ok" or the reason for each part.
	Checks map[string]string `json:"checks"`
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	body := s.readiness(r.Context())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !body.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body)
}

func (s *Server) readiness(ctx context.Context) readiness {
	r := readiness{Ready: true, Checks: map[string]string{}}
	for name, err := range s.check(ctx) {
		r.Checks[name] = "ok"
		if err != nil {
			r.Ready, r.Checks[name] = false, err.Error()
		}
	}
	if s.draining.Load() {
		r.Ready, r.Checks["worker"] = false, "draining"
	}
	return r
}

func (s *Server) check(ctx context.Context) map[string]error {
	if s.cfg.Ready == nil {
		return nil
	}
	// Concurrent requests share one check, because each check takes a connection to the store.
	checked := s.checks.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return s.cfg.Ready(ctx), nil
	})
	select {
	case c := <-checked:
		return c.Val.(map[string]error)
	case <-ctx.Done(): // the client has gone
		return map[string]error{"worker": ctx.Err()}
	}
}
