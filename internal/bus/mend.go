package bus

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// mendEvery is how often the embedded server is asked how it is. What it complains of twice in a row stands: a stream that is
// created or deleted just then is one that it could not recover, too.
const mendEvery = 2 * time.Second

// mendRoom is how many bytes must find room on the disk before streams are opened again.
const mendRoom = 1 << 20

// mending opens the streams of the embedded server again. It keeps the first error of writing to a stream, such as that of a
// full disk, and takes nothing for the stream any more, as long as it has it open; some errors close all streams.
type mending struct {
	dir     string
	streams server.JetStreamConfig
	log     *slog.Logger
	// accepted are complaints that opening the streams does not end; seen is the one of the last look, and told the last that
	// was logged.
	accepted   map[string]bool
	seen, told string
	stop       context.CancelFunc
	stopped    chan struct{}
}

func (e *Embedded) startMending(cfg EmbedConfig) {
	ctx, stop := context.WithCancel(context.Background())
	e.mending = mending{
		dir: cfg.StoreDir, streams: *e.server.JetStreamConfig(), log: cfg.Logger, stop: stop, stopped: make(chan struct{}),
	}
	e.mending.streams.StoreDir = cfg.StoreDir // the server adds its own folder
	e.mending.accept(e.server)
	go func() {
		defer close(e.mending.stopped)
		tick := time.NewTicker(mendEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				e.mend()
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (e *Embedded) stopMending() {
	e.mending.stop()
	<-e.mending.stopped
}

// mend opens the streams again if one of them has come to be of no use, and there is room.
func (e *Embedded) mend() {
	m := &e.mending
	complaint := m.complaint(e.server)
	stands := complaint == m.seen
	m.seen = complaint
	if complaint == "" {
		m.told = ""
	}
	if complaint == "" || !stands {
		return
	}
	if err := m.tryRoom(); err != nil {
		m.tell("the embedded NATS server cannot write its streams; events wait until it can", complaint, err)
		return
	}
	err := e.server.ShutdownJetStream()
	if err == nil {
		streams := m.streams
		err = e.server.EnableJetStream(&streams)
	}
	if err == nil {
		if still := m.complaint(e.server); still != "" {
			m.accept(e.server)
			err = errors.New(still)
		}
	}
	if err != nil {
		m.tell("the embedded NATS server cannot open its streams again; restart the limiter", complaint, err)
		return
	}
	m.told = ""
	m.log.Info("the embedded NATS server has opened its streams again", "after", complaint)
}

// tell logs an error that was not logged just before.
func (m *mending) tell(text, complaint string, err error) {
	if m.told == text {
		return
	}
	m.told = text
	m.log.Error(text, "error", err, "server", complaint)
}

// complaint is the first that the server has about its streams and that is not accepted.
func (m *mending) complaint(s *server.Server) string {
	for _, e := range complaints(s) {
		if !m.accepted[e] {
			return e
		}
	}
	return ""
}

// accept takes all that the server complains about now for what opening the streams does not end.
func (m *mending) accept(s *server.Server) {
	m.accepted = make(map[string]bool)
	for _, e := range complaints(s) {
		m.accepted[e] = true
	}
}

// complaints leaves out folders whose name begins with a point, which no stream has: the server moves a stream there that was
// deleted, and removes its files while the client has its answer.
func complaints(s *server.Server) (all []string) {
	for _, e := range s.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorJetStream || e.Type == server.HealthzErrorStream && !strings.HasPrefix(e.Stream, ".") {
			all = append(all, e.Error)
		}
	}
	return all
}

// tryRoom writes a file where the streams are.
func (m *mending) tryRoom() (err error) {
	f, err := os.CreateTemp(m.dir, "room-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(make([]byte, mendRoom)); err != nil {
		return err
	}
	return f.Sync()
}
