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
	// drainTimeout bounds the stop of each part, and stopTimeout that of all parts together: a supervisor usually
	// kills a service after 30 s, and the log must say by then what was lost. Each part gets minStopTimeout
	// even if the parts before it used up the time.
	drainTimeout   = 10 * time.Second
	stopTimeout    = 20 * time.Second
	minStopTimeout = time.Second
)

// limiter is a running limiter or alerter: its parts, and how to stop them.
type limiter struct {
	Options
	// name is the program's name. NATS and PostgreSQL show it with its connections.
	name string
	// rights are those that it needs in PostgreSQL.
	rights []postgres.Rights
	log    *slog.Logger

	store store
	// storeID is a string, unique among all stores.
	storeID atomic.Value
	// otherStoreSeen is when a limiter that uses another store was last heard of; nil for never.
	otherStoreSeen atomic.Pointer[time.Time]
	// embedded is nil with NATSURL.
	embedded *bus.Embedded
	// requests has the service, the broadcasts, and the announcements of keys and overrides; events has everything else.
	// startNATS says why they are two.
	requests *nats.Conn
	events   *nats.Conn
	metrics  *web.Metrics
	usage    *usage.Recorder
	engine   *engine.Engine
	relay    *bus.Relay
	// policies is nil without a policy file.
	policies *policy.Keeper
	// warnedOf are the policies that overrides were compared with last.
	warnedOf atomic.Pointer[policy.Set]
	// web is nil with --http off.
	web       *web.Server
	keys      *keys.Registry
	overrides *overrides.Table
	// unsubscribes end the subscriptions to messages of other workers.
	unsubscribes []func()
	// jobs is nil if no jobs run here. alerts, sender, alertAdmin and consumer are nil if no alerts run here.
	jobs       bus.Jobs
	alerts     *alerts.Service
	sender     *deliver.Sender
	alertAdmin *alerts.Admin
	consumer   *bus.Consumer
	// alertsFile is nil without an alerts file.
	alertsFile *alerts.RulesKeeper
	alertRules func() *alerts.Rules
	// startingPart is the part that the start waits for, "store" or "nats"; empty when both are there.
	startingPart atomic.Value
	// serving is set once requests are answered.
	serving atomic.Bool
	// connLost receives the error of a NATS connection that was closed for good.
	connLost chan error

	stops []stop
}

// stop stops one part.
type stop struct {
	part string
	run  func(ctx context.Context) error
}

// Run runs a limiter until ctx is done, then drains it: readiness turns false, no further request is accepted,
// and every accepted one is answered. It logs "ready nats=… http=…" once requests are answered. If options are
// invalid it fails with [ErrOptions] before it starts anything.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	if err := o.check(); err != nil {
		return err
	}
	l := &limiter{Options: o, name: "limiter", rights: []postgres.Rights{postgres.RightsToDecide()}, log: log}
	if o.runsAlerts() {
		l.rights = append(l.rights, postgres.RightsToAlert())
	}
	return l.run(ctx, l.lockDataDir, l.loadPolicies, l.loadAlerts, l.startWeb, l.startStore, l.startNATS, l.startEvents,
		l.startUsage, l.startEngine, l.startAdmin, l.watchPolicies, l.startAlerts, l.watchAlerts, l.startJobs, l.watchStores, l.startService)
}

// run starts parts in order, waits until ctx is done or a NATS connection is lost for good, and stops them.
func (l *limiter) run(ctx context.Context, parts ...func(context.Context) error) error {
	defer l.handleHangUps()()
	// The process that reads the log from a pipe may end, for example to restart. That loses lines of the log, but must
	// not end this process without a drain.
	signal.Ignore(syscall.SIGPIPE)
	l.connLost = make(chan error, 1)
	err := l.start(ctx, parts)
	if err == nil {
		l.log.Info("ready", "nats", redact.URLs(l.requests.ConnectedUrl()), "http", l.httpAddr(), "store", l.storeName())
		select {
		case <-ctx.Done():
		case err = <-l.connLost:
		}
		l.log.Info("draining")
		if l.web != nil {
			l.web.SetDraining() // before any part is stopped
		}
	}
	if err = errors.Join(err, l.stop()); err == nil {
		l.log.Info("stopped")
	}
	return err
}

// start starts the parts in order. After an error too, the caller calls stop, for the parts that were started.
func (l *limiter) start(ctx context.Context, parts []func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, part := range parts {
		if err := part(ctx); err != nil {
			if errors.Is(ctx.Err(), context.Canceled) { // by a signal; startTimeout would be DeadlineExceeded
				return fmt.Errorf("interrupted: %w", err)
			}
			return err
		}
	}
	return nil
}

// onStop registers how a part is stopped. Parts are stopped in reverse order.
func (l *limiter) onStop(part string, run func(ctx context.Context) error) {
	l.stops = append(l.stops, stop{part, run})
}

// stop stops the parts in reverse order. Each part has a timeout of its own, and the others are stopped even if
// one fails. A part that ignores its timeout is named in the log.
func (l *limiter) stop() error {
	end := time.Now().Add(stopTimeout)
	var errs []error
	for _, s := range slices.Backward(l.stops) {
		timeout := max(minStopTimeout, min(drainTimeout, time.Until(end)))
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		overdue := time.AfterFunc(timeout+minStopTimeout, func() {
			l.log.Warn("still stopping; a second signal ends the process at once", "part", s.part)
		})
		if err := s.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.part, err))
		}
		overdue.Stop()
		cancel()
	}
	return errors.Join(errs...)
}

func (l *limiter) startNATS(ctx context.Context) (err error) {
	l.warnUnusedSettings()
	if l.NATSURL == "" {
		l.embedded, err = bus.Embed(bus.EmbedConfig{Listen: l.NATSListen, StoreDir: filepath.Join(l.DataDir, "nats"), Logger: l.log})
		if err != nil {
			return err
		}
		l.onStop("embedded NATS server", func(context.Context) error { l.embedded.Shutdown(); return nil })
	}
	// Requests have a connection of their own: a service that stops waits until its connection has no subscription left.
	if l.requests, err = l.connect(ctx, "requests"); err != nil {
		return err
	}
	if l.events, err = l.connect(ctx, "events"); err != nil {
		return err
	}
	l.startingPart.Store("")
	return nil
}

// warnUnusedSettings logs the NATS settings that have no effect with an embedded server, or only with one. They are
// no error, because the environment may have them for other programs.
func (l *limiter) warnUnusedSettings() {
	if l.NATSURL != "" {
		if l.NATSListen != "" && l.NATSListen != bus.DefaultListen {
			l.log.Warn("--nats-listen (NATS_LISTEN) is ignored: with --nats-url (NATS_URL) no NATS server is embedded", "nats-listen", l.NATSListen)
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
		l.log.Warn("settings for --nats-url are ignored: without it the NATS server is embedded", "settings", strings.Join(unused, ", "))
	}
}

// connect opens one of the two NATS connections; use says what for.
func (l *limiter) connect(ctx context.Context, use string) (*nats.Conn, error) {
	cfg := bus.ConnectConfig{
		URL: l.NATSURL, Creds: l.NATSCreds, TLSCA: l.NATSTLSCA, TLSCert: l.NATSTLSCert, TLSKey: l.NATSTLSKey,
		InboxPrefix: l.NATSInboxPrefix, Name: l.name + " " + use, Logger: l.log,
	}
	if l.embedded != nil { // which has neither accounts nor TLS
		cfg.URL, cfg.Creds, cfg.TLSCA, cfg.TLSCert, cfg.TLSKey = l.embedded.URL(), "", "", "", ""
	}
	nc, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// nats.go gives up for good after some errors of a server. Over plain connections they are kept from it, but over
	// websockets they cannot be. This process then ends, to be restarted: nobody can reach it any more.
	nc.SetClosedHandler(func(nc *nats.Conn) {
		select {
		case l.connLost <- fmt.Errorf("the NATS connection for %s was closed for good: %w", use, nc.LastError()):
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

// startWeb starts before the parts that wait for a server, so that health checks show what a start waits for.
func (l *limiter) startWeb(context.Context) (err error) {
	l.startingPart.Store("store")
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
	l.usage, err = usage.NewRecorder(usage.Config{Store: l.store, Logger: l.log, Keys: l.UsageKeys})
	if err != nil {
		return err
	}
	l.onStop("usage", l.usage.Close)
	l.metrics.WatchUsage(func() web.Losses { return web.Losses(l.usage.Losses()) })
	return nil
}

func (l *limiter) startEngine(ctx context.Context) (err error) {
	// Broadcasts go over the connection of the requests. So the server gets a worker's broadcast before its answer to a
	// refund, a record or a reset, and other workers get the broadcast before a request that follows that answer. They handle
	// it first, too, since the service takes both from where they are read. So it is with a consume or a check that freed a
	// counter or ended a lease, unless the connection breaks meanwhile.
	forget := bus.NewForgets(l.requests, l.log)
	storeOutage := outage.New(l.log, slog.LevelError, "the store is failing; answering without it", "the store works again")
	l.engine, err = engine.New(ctx, engine.Config{
		Store:     l.store,
		NewID:     rand.Text,
		Broadcast: forget.Send,
		Committed: l.relay.Wake,
		Observer:  l.engineObserver(),
		Tally:     l.usage.Tally,

		StoreFailing: func(err error) { storeOutage.Tried(err, "on-error", l.onError.String()) },
	})
	if err != nil {
		return err
	}
	l.onStop("engine", l.engine.Close)
	l.metrics.WatchQueue(l.engine.Queued)
	l.metrics.WatchLeased(l.engine.Leased)
	l.metrics.WatchStore(l.storeHealthy)
	return listen(l, "broadcasts", forget, l.engine.Forget)
}

func (l *limiter) startService(context.Context) error {
	return l.serve(bus.ServiceConfig{
		Lead: l.lead(),
		Conn: l.requests, Engine: l.engine, Version: l.Version, SchemaBase: l.schemaBase(),
		OnError: l.onError, Advice: l.store.Advice, WarningThreshold: l.WarningThreshold, Logger: l.log, Policies: l.policySource(),
		UsageLog: l.usage, Usage: l.store,
		Keys: l.keys, Overrides: l.overrides, Jobs: l.jobs, Alerts: l.alertAdmin,
	})
}

// lead configures how the workers on one PostgreSQL agree on the one that decides. It is nil with SQLite, whose file
// has only one worker.
func (l *limiter) lead() *bus.LeadConfig {
	shared, ok := l.store.(*postgres.Store)
	if !ok {
		return nil
	}
	return &bus.LeadConfig{Store: l.identity, Able: l.engine.Failure, Rest: shared.Rest}
}

// serve starts the service that answers requests.
func (l *limiter) serve(cfg bus.ServiceConfig) error {
	service, err := bus.NewService(cfg)
	if err != nil {
		return err
	}
	if cfg.Engine != nil {
		l.metrics.WatchDeciding(service.Deciding)
	}
	l.onStop("service", func(ctx context.Context) error { return l.stopService(ctx, service) })
	l.serving.Store(true)
	return nil
}

// stopService stops the service that answers requests.
func (l *limiter) stopService(ctx context.Context, service interface {
	HandOver(ctx context.Context)
	Stop(ctx context.Context) error
}) error {
	service.HandOver(ctx)                        // until it returns requests are decided, and the engine needs the messages of other workers
	for _, unsubscribe := range l.unsubscribes { // Stop waits until its connection has no subscription
		unsubscribe()
	}
	return service.Stop(ctx)
}

func (l *limiter) httpAddr() string {
	if l.web == nil {
		return "off"
	}
	return l.web.Addr()
}

// schemaBase is the URL under which the schemas of events and requests are served: below the source if that is a
// URL, otherwise the address of this worker.
func (l *limiter) schemaBase() string {
	source, err := url.Parse(l.Source)
	switch {
	case err == nil && (source.Scheme == "http" || source.Scheme == "https"):
		return strings.TrimSuffix(source.String(), "/") + "/schemas"
	case l.web == nil:
		return "urn:limits:schemas" // only a name: they are not served
	default:
		return "http://" + reachable(l.web.Addr()) + "/schemas"
	}
}

func (l *limiter) origin() bus.Origin {
	return bus.Origin{Source: l.Source, SchemaBase: l.schemaBase()}
}

// reachable replaces an unspecified host, such as 0.0.0.0, with the name of this machine.
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
