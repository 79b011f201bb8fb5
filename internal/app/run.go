package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/outage"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/redact"
	"github.com/seed503877ad/limits/internal/usage"
	"github.com/seed503877ad/limits/internal/web"
	"github.com/seed503877ad/limits/schemas"
)

const (
	// startTimeout bounds how long a start waits for PostgreSQL and NATS to come up.
	startTimeout = 30 * time.Second
	// drainTimeout bounds each step of the stop, and stopTimeout all of them together: who stops a service mostly kills it
	// after 30 s, and what it lost must be said by then. Whatever hung before it, each step has lastPatience.
	drainTimeout = 10 * time.Second
	stopTimeout  = 20 * time.Second
	lastPatience = time.Second
)

// limiter is a running limiter: its parts, and how to stop them in reverse.
type limiter struct {
	Options
	// name is the program's, for who looks at the connections of NATS and PostgreSQL.
	name string
	// needs are the rights that it needs in PostgreSQL.
	needs []postgres.Rights
	log   *slog.Logger

	store   store
	storeID string // tells it from all others
	// elsewhere is when a limiter was heard of last that counts in another store, in Unix nanoseconds; 0 for never.
	elsewhere atomic.Int64
	embedded  *bus.Embedded
	requests  *nats.Conn
	events    *nats.Conn
	metrics   *web.Metrics
	usage     *usage.Recorder
	engine    *engine.Engine
	relay     *bus.Relay
	// policies is nil without a policy file.
	policies *policy.Keeper
	// web is nil with --http off.
	web       *web.Server
	keys      *keys.Registry
	overrides *overrides.Table
	// listening ends what listens to other workers.
	listening []func()
	// jobs, alerts, sender, desk and consumer are nil where that work is not done; alertsFile is nil without one.
	jobs       bus.Jobs
	alerts     *alerts.Service
	sender     *deliver.Sender
	desk       bus.Alerts
	consumer   *bus.Consumer
	alertsFile *alerts.RulesKeeper
	alertRules func() *alerts.Rules
	// awaits names the part that a start has not reached yet, "store" or "nats", for checks that come meanwhile; empty after that.
	awaits atomic.Value
	// serving says that requests are answered.
	serving atomic.Bool
	// lost tells of a connection that does not come back.
	lost chan error

	stops []stop
}

type stop struct {
	part string
	f    func(ctx context.Context) error
}

// Run runs a limiter until ctx is done, then drains it: readiness turns false, no further request is taken, every
// one that was taken is answered. It logs "ready nats=… http=…" once requests are answered. It fails with [ErrOptions]
// before anything is started, where options are wrong.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	if err := o.check(); err != nil {
		return err
	}
	l := &limiter{Options: o, name: "limiter", needs: []postgres.Rights{postgres.RightsToDecide()}, log: log}
	if o.RunsAlerts() {
		l.needs = append(l.needs, postgres.RightsToAlert())
	}
	return l.run(ctx, l.lockData, l.loadPolicies, l.loadAlerts, l.startWeb, l.startStore, l.startNATS, l.startEvents,
		l.startUsage, l.startEngine, l.startAdmin, l.watchPolicies, l.startAlerts, l.watchAlerts, l.startJobs, l.watchStores, l.startService)
}

// run starts parts in order, waits until ctx is done, and stops them.
func (l *limiter) run(ctx context.Context, parts ...func(context.Context) error) error {
	defer l.surviveHangUps()()
	// Who reads the log may end, as a logger does that starts anew. That loses lines, and is no reason to end without a drain.
	signal.Ignore(syscall.SIGPIPE)
	l.lost = make(chan error, 1)
	err := l.start(ctx, parts)
	if err == nil {
		l.log.Info("ready", "nats", redact.URLs(l.requests.ConnectedUrl()), "http", l.httpAddr(), "store", l.storeName())
		select {
		case <-ctx.Done():
		case err = <-l.lost:
		}
		l.log.Info("draining")
		l.drain()
	}
	if err = errors.Join(err, l.stop()); err == nil {
		l.log.Info("stopped")
	}
	return err
}

// start starts the parts in order. The ones that were started are stopped by stop, also after an error.
func (l *limiter) start(ctx context.Context, parts []func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, part := range parts {
		if err := part(ctx); err != nil {
			if errors.Is(ctx.Err(), context.Canceled) { // by a signal; the start's own end is a deadline
				return fmt.Errorf("interrupted: %w", err)
			}
			return err
		}
	}
	return nil
}

func (l *limiter) onStop(part string, f func(ctx context.Context) error) {
	l.stops = append(l.stops, stop{part, f})
}

// stop stops the parts in reverse; every part has its time, and one that fails does not keep the others. One that must be waited
// for longer is named meanwhile.
func (l *limiter) stop() error {
	end := time.Now().Add(stopTimeout)
	var errs []error
	for _, s := range slices.Backward(l.stops) {
		patience := max(lastPatience, min(drainTimeout, time.Until(end)))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		late := time.AfterFunc(patience+lastPatience, func() {
			l.log.Warn("still stopping; a second signal ends the process at once", "part", s.part)
		})
		if err := s.f(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.part, err))
		}
		late.Stop()
		cancel()
	}
	return errors.Join(errs...)
}

func (l *limiter) startNATS(ctx context.Context) (err error) {
	l.tellUnused()
	if l.NATSURL == "" {
		l.embedded, err = bus.Embed(bus.EmbedConfig{Listen: l.NATSListen, StoreDir: filepath.Join(l.DataDir, "nats"), Logger: l.log})
		if err != nil {
			return err
		}
		l.onStop("embedded NATS server", func(context.Context) error { l.embedded.Shutdown(); return nil })
	}
	// Requests have a connection of their own: a service that drains knows by it when the last request was taken.
	if l.requests, err = l.connect(ctx, "requests"); err != nil {
		return err
	}
	if l.events, err = l.connect(ctx, "events"); err != nil {
		return err
	}
	l.awaits.Store("")
	return nil
}

// tellUnused names the settings that an embedded server has no use for, or that only one has. They end no start: the environment
// may have them for other programs.
func (l *limiter) tellUnused() {
	if l.NATSURL != "" {
		if l.NATSListen != "" && l.NATSListen != bus.DefaultListen {
			l.log.Warn("--nats-listen (NATS_LISTEN) is not used: with --nats-url (NATS_URL) no NATS server is embedded", "nats-listen", l.NATSListen)
		}
		return
	}
	var unused []string
	for _, s := range []struct{ name, value string }{
		{"--nats-creds (NATS_CREDS)", l.NATSCreds}, {"--nats-tls-ca (NATS_TLS_CA)", l.NATSTLSCA},
		{"--nats-tls-cert (NATS_TLS_CERT)", l.NATSTLSCert}, {"--nats-tls-key (NATS_TLS_KEY)", l.NATSTLSKey},
	} {
		if s.value != "" {
			unused = append(unused, s.name)
		}
	}
	if len(unused) > 0 {
		l.log.Warn("settings for --nats-url are not used: without it the NATS server is embedded", "settings", strings.Join(unused, ", "))
	}
}

func (l *limiter) connect(ctx context.Context, use string) (*nats.Conn, error) {
	cfg := bus.ConnectConfig{
		URL: l.NATSURL, Creds: l.NATSCreds, TLSCA: l.NATSTLSCA, TLSCert: l.NATSTLSCert, TLSKey: l.NATSTLSKey,
		InboxPrefix: l.NATSInboxPrefix, Name: l.name + " " + use, Logger: l.log,
	}
	if l.embedded != nil { // it has neither accounts nor TLS
		cfg.URL, cfg.Creds, cfg.TLSCA, cfg.TLSCert, cfg.TLSKey = l.embedded.URL(), "", "", "", ""
	}
	nc, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// nats.go gives up at some errors of a server, such as over websockets, where they cannot be kept from it. A process that starts anew is
	// better than one that nobody can ask.
	nc.SetClosedHandler(func(nc *nats.Conn) {
		select {
		case l.lost <- fmt.Errorf("the NATS connection for %s was closed for good: %w", use, nc.LastError()):
		default:
		}
	})
	l.onStop("NATS connection for "+use, func(context.Context) error {
		nc.SetClosedHandler(nil)
		nc.Close()
		return nil
	})
	return nc, nil
}

// startWeb answers health checks before anything is waited for, so that a start that waits can be seen.
func (l *limiter) startWeb(context.Context) (err error) {
	l.awaits.Store("store")
	registry := prometheus.NewRegistry()
	l.metrics = web.NewMetrics(registry)
	l.metrics.SetVersion(l.Version)
	if l.HTTPAddr == "off" {
		return nil
	}
	l.web, err = web.New(web.Config{Addr: l.HTTPAddr, Ready: l.ready, Registry: registry, Schemas: schemas.FS, Logger: l.log})
	if err != nil {
		return err
	}
	if err := l.web.Listen(); err != nil {
		return err
	}
	l.onStop("HTTP server", l.web.Shutdown)
	return nil
}

func (l *limiter) startEvents(context.Context) (err error) {
	l.relay, err = bus.NewRelay(bus.RelayConfig{
		Conn: l.events, Outbox: l.store, Origin: l.origin(), Logger: l.log,
	})
	if err != nil {
		return err
	}
	l.metrics.WatchBacklog(l.store.Backlog)
	l.background("event relay", l.relay.Run)
	return nil
}

func (l *limiter) startUsage(context.Context) (err error) {
	l.usage, err = usage.NewRecorder(usage.Config{Store: l.store, Logger: l.log})
	if err != nil {
		return err
	}
	l.onStop("usage", l.usage.Close)
	l.metrics.WatchUsage(func() web.Losses { return web.Losses(l.usage.Losses()) })
	return nil
}

func (l *limiter) startEngine(ctx context.Context) (err error) {
	// On the connection of the requests, so that what a worker tells comes before its answer to a refund, a record or a reset, and to others
	// before the request that follows the answer; which of the two these take first, where several decide, nobody says. The answers to consume
	// and check do not go over nats.go, so they may come before what is told of a counter that those have freed, or a lease that they ended.
	forget := bus.NewForgetter(l.requests, l.log)
	failing := outage.New(l.log, slog.LevelError, "the store fails: answering without it", "the store answers again")
	l.engine, err = engine.New(ctx, engine.Config{
		Store:     l.store,
		NewID:     rand.Text,
		Broadcast: forget.Broadcast,
		Committed: l.relay.Wake,
		Observer:  l.watchDamage(),
		Tally:     l.usage.Tally,

		StoreFailing: func(err error) { failing.Tried(err, "on-error", l.onError.String()) },
	})
	if err != nil {
		return err
	}
	l.onStop("engine", l.engine.Close)
	l.metrics.WatchQueue(l.engine.Queued)
	l.metrics.WatchLeased(l.engine.Leased)
	l.metrics.WatchStore(l.storeHealthy)
	if err := forget.Listen(l.engine.Forget); err != nil {
		return err
	}
	l.listens("broadcasts", forget.Close)
	return nil
}

func (l *limiter) startService(context.Context) error {
	return l.serve(bus.ServiceConfig{
		Lead: l.lead(),
		Conn: l.requests, Engine: l.engine, Version: l.Version, SchemaBase: l.schemaBase(),
		OnError: l.onError, Advice: l.store.Advice, WarningThreshold: l.WarningThreshold, Logger: l.log, Policies: l.policySource(),
		UsageLog: l.usage, Usage: l.store,
		Keys: l.keys, Overrides: l.overrides, Jobs: l.jobs, Alerts: l.desk,
	})
}

// serve answers requests.
func (l *limiter) serve(cfg bus.ServiceConfig) error {
	service, err := bus.NewService(cfg)
	if err != nil {
		return err
	}
	if cfg.Engine != nil {
		l.metrics.WatchDeciding(service.Deciding)
	}
	l.onStop("service", func(ctx context.Context) error {
		service.HandOver(ctx)
		for _, end := range l.listening { // the service waits until nothing is subscribed on its connection
			end()
		}
		return service.Stop(ctx)
	})
	l.serving.Store(true)
	return nil
}

// drain turns readiness false before anything stops.
func (l *limiter) drain() {
	if l.web != nil {
		l.web.SetDraining()
	}
}

func (l *limiter) httpAddr() string {
	if l.web == nil {
		return "off"
	}
	return l.web.Addr()
}

// schemaBase is the URL under which the schemas of events and requests are served: below the source, where that is
// a URL, else where this worker serves them.
func (l *limiter) schemaBase() string {
	source, err := url.Parse(l.Source)
	switch {
	case err == nil && (source.Scheme == "http" || source.Scheme == "https"):
		return strings.TrimSuffix(source.String(), "/") + "/schemas"
	case l.web == nil:
		return "urn:limits:schemas" // a name alone: nobody serves them
	default:
		return "http://" + reachable(l.web.Addr()) + "/schemas"
	}
}

func (l *limiter) origin() bus.Origin {
	return bus.Origin{Source: l.Source, SchemaBase: l.schemaBase()}
}

// reachable puts the name of this machine where an address stands for all of its interfaces.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return addr
	}
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	return net.JoinHostPort(name, port)
}
