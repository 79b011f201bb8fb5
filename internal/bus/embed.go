package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed503877ad/limits/internal/redact"
)

// DefaultListen is where an embedded server listens by default.
const DefaultListen = "127.0.0.1:4222"

// EmbedConfig configures a NATS server in this process.
type EmbedConfig struct {
	// Listen is host:port; DefaultListen unless set. Port 0 picks a free one, see [Embedded.URL].
	Listen string
	// StoreDir is the folder of the streams; required.
	StoreDir string
	// Logger receives the log of the server; required.
	Logger *slog.Logger
}

// Bounds of the embedded server. embedMaxStore leaves room for more than the streams of this
// product, which have 1 GiB or less each.
const (
	embedMaxMemory  = 64 << 20
	embedMaxStore   = 8 << 30
	embedMaxPayload = 1 << 20
)

// startTimeout bounds the wait until the server accepts connections: it may have to recover a large
// stream.
const startTimeout = 20 * time.Second

// Embedded is a running server.
type Embedded struct {
	server   *server.Server
	host     string
	repairer *streamRepairer
}

// Embed starts a server with JetStream, and returns when it accepts connections. Until Shutdown it
// reopens its streams after write errors, once there is room on the disk, and closes them while
// their files are gone.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	cfg.Listen = cmp.Or(cfg.Listen, DefaultListen)
	switch {
	case cfg.StoreDir == "":
		return nil, errors.New("embedded NATS: StoreDir is missing")
	case cfg.Logger == nil:
		return nil, errors.New("embedded NATS: Logger is missing")
	}
	host, port, err := probe(cfg.Listen)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		cfg.Logger.Warn("the embedded NATS server has no authentication and accepts connections from other machines", "listen", cfg.Listen)
	}
	for {
		s, err := startServer(cfg, host, port)
		if err != nil {
			return nil, err
		}
		aside, err := setConsumerAside(s, cfg.Logger)
		if err == nil && aside {
			// Its streams are not just reopened: goroutines that it is starting may still read what
			// it would write then.
			shutDown(s)
			continue
		}
		e := &Embedded{server: s, host: host}
		if err == nil {
			e.repairer, err = startRepair(s, cfg)
		}
		if err != nil {
			shutDown(s)
			return nil, fmt.Errorf("embedded NATS, with its streams in %s: %w", cfg.StoreDir, err)
		}
		return e, nil
	}
}

// startServer starts a server, and returns when it is ready.
func startServer(cfg EmbedConfig, host string, port int) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "limits-embedded", Host: host, Port: port,
		// The program handles signals.
		NoSigs:    true,
		JetStream: true, StoreDir: cfg.StoreDir, DisableJetStreamBanner: true,
		// An event leaves the outbox when it is acknowledged, so what is acknowledged must be on
		// disk.
		SyncAlways:         true,
		JetStreamMaxMemory: embedMaxMemory,
		JetStreamMaxStore:  embedMaxStore,
		MaxPayload:         embedMaxPayload,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS on %s: %w", cfg.Listen, err)
	}
	log := &serverLog{log: cfg.Logger}
	s.SetLoggerV2(log, cfg.Logger.Enabled(context.Background(), slog.LevelDebug), false, false)
	s.Start()
	switch {
	case log.gaveUp.Load():
		err = fmt.Errorf("embedded NATS on %s, with its streams in %s: %s", cfg.Listen, cfg.StoreDir, log.last())
	case !s.ReadyForConnections(startTimeout):
		err = fmt.Errorf("embedded NATS on %s: not ready after %s: %s", cfg.Listen, startTimeout, log.last())
	case !s.JetStreamEnabled():
		err = fmt.Errorf("embedded NATS: JetStream in %s: %s", cfg.StoreDir, log.last())
	}
	if err != nil {
		shutDown(s)
		return nil, err
	}
	return s, nil
}

// shutDown stops a server, and returns when its streams are closed.
func shutDown(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// probe parses the address and tries to listen on it, because the server would only log that it
// cannot. It returns the port as the server's options want it.
func probe(listen string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("--nats-listen %q is not host:port; want one such as 127.0.0.1:4222", listen)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return "", 0, fmt.Errorf("embedded NATS on %s: %w; choose another address with --nats-listen "+
			"(port 0 picks a free one), or use the server that runs there with --nats-url", listen, err)
	}
	_ = l.Close()
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

// URL is where the server listens.
func (e *Embedded) URL() string {
	host := e.host
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	_, port, _ := net.SplitHostPort(e.server.Addr().String())
	return "nats://" + net.JoinHostPort(host, port)
}

// Shutdown stops the server, and returns when its streams are closed.
func (e *Embedded) Shutdown() {
	e.repairer.stopRepair()
	shutDown(e.server)
}

// serverLog passes the server's log on to slog. The server's notices are about itself (its banner,
// its version), so they are logged at level debug.
type serverLog struct {
	log *slog.Logger
	// repeats are by what happened, whoever it happened to: clients can cause warnings and errors as often as they like.
	repeats logThrottles
	mu      sync.Mutex
	err     string
	// gaveUp says that the server cannot go on. It will never be ready, and the last error says
	// why.
	gaveUp atomic.Bool
}

func (l *serverLog) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.write(slog.LevelWarn, format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.write(slog.LevelError, format, v) }

// Fatalf must not end the process; Embed says why the server is not ready.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.write(slog.LevelError, format, v)
	l.gaveUp.Store(true)
}

func (l *serverLog) write(level slog.Level, format string, v []any) {
	if level < slog.LevelError && !l.log.Enabled(context.Background(), level) {
		return
	}
	text := redact.URLs(strings.TrimSpace(fmt.Sprintf(format, v...)))
	if level == slog.LevelError {
		l.mu.Lock()
		l.err = text
		l.mu.Unlock()
	}
	times := int64(1)
	if level >= slog.LevelWarn {
		if times = l.repeats.due(whatHappened(format, text)); times == 0 {
			return
		}
	}
	l.log.Log(context.Background(), level, text, "part", "nats-server", "times", times)
}

// whatHappened is the kind of a line, whoever it is about: the words of its format, before which the server puts the
// client's name. A format without words, as of "%s" and an error, has lines of many kinds, so the kind is then that of the
// text, up to the first name or number: a client's error must not hide that the disk is full.
func whatHappened(format, text string) string {
	what := format[strings.LastIndex(format, " - ")+1:]
	if strings.Trim(what, "-%:svw ") != "" {
		return what
	}
	what = text[strings.LastIndex(text, " - ")+1:]
	if at := strings.IndexAny(what, `"'[(0123456789`); at > 0 {
		what = what[:at]
	}
	return what
}

// last is the last error that the server logged.
func (l *serverLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == "" {
		return "its log has no error"
	}
	return l.err
}
