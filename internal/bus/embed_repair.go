package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// mendEvery is how often the embedded server is asked how it is. What it complains of twice in a row stands: a stream that is
// created or deleted just then is one that it could not recover, too.
const repairInterval = 2 * time.Second

// mendRoom is how many bytes must find room on the disk before streams are opened again.
const probeBytes = 1 << 20

// mending opens the streams of the embedded server again. It keeps the first error of writing to a stream, such as that of a
// full disk, and takes nothing for the stream any more, as long as it has it open; some errors close all streams. When the
// files of a stream are gone, on the other hand, it goes on as if nothing were, and acknowledges what nobody finds again.
type streamRepairer struct {
	dir     string
	streams server.JetStreamConfig
	log     *slog.Logger
	// root is the folder of the streams when they were opened. It is held open, so that no other folder can be taken for it.
	root *os.File
	// gone is what is not in its place, and the streams are closed until it is; suspect may be.
	gone, suspect string
	// accepted are complaints that opening the streams does not end; seen is the one of the last look, and told the last that
	// was logged.
	tolerated             map[string]bool
	lastError, lastLogged string
	stop                  context.CancelFunc
	stopped               chan struct{}
}

func (e *Embedded) startRepair(cfg EmbedConfig) error {
	root, err := os.Open(e.server.StoreDir())
	if err != nil {
		return fmt.Errorf("embed NATS: open the folder of its streams: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	e.repairer = streamRepairer{
		dir: cfg.StoreDir, streams: *e.server.JetStreamConfig(), log: cfg.Logger, root: root, stop: stop, stopped: make(chan struct{}),
	}
	e.repairer.streams.StoreDir = cfg.StoreDir // the server adds its own folder
	e.repairer.tolerateAll(e.server)
	go func() {
		defer close(e.repairer.stopped)
		tick := time.NewTicker(repairInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				e.repair()
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

func (e *Embedded) stopRepair() {
	e.repairer.stop()
	<-e.repairer.stopped
	_ = e.repairer.root.Close()
}

// mend opens the streams again if one of them has come to be of no use, and there is room. It closes them while their files are
// gone, so that nothing is acknowledged for them.
func (e *Embedded) repair() {
	m := &e.repairer
	wasGone := m.gone
	if m.gone = m.missing(e.server); m.gone != "" {
		err := fmt.Errorf("%s was removed or replaced while the limiter runs", m.gone)
		if wasGone == "" {
			err = errors.Join(err, e.server.ShutdownJetStream())
		}
		m.logOnce("the files of the embedded NATS server's streams are gone: events wait in the outbox until they are put back, or the "+
			"limiter is restarted, which begins new streams", "", err)
		return
	}
	if wasGone != "" {
		m.open(e.server, wasGone+" was gone")
		return
	}
	complaint := m.healthError(e.server)
	stands := complaint == m.lastError
	m.lastError = complaint
	if complaint == "" {
		m.lastLogged = ""
	}
	if complaint == "" || !stands {
		return
	}
	if err := m.tryWrite(); err != nil {
		m.logOnce("the embedded NATS server cannot write its streams; events wait until it can", complaint, err)
		return
	}
	m.open(e.server, complaint)
}

// open opens the streams again, after what was wrong with them.
func (m *streamRepairer) open(s *server.Server, complaint string) {
	err := s.ShutdownJetStream()
	if err == nil {
		streams := m.streams
		err = s.EnableJetStream(&streams)
	}
	if err == nil {
		if still := m.healthError(s); still != "" {
			m.tolerateAll(s)
			err = errors.New(still)
		}
	}
	if err != nil {
		m.logOnce("the embedded NATS server cannot open its streams again; restart the limiter", complaint, err)
		return
	}
	m.lastLogged = ""
	m.log.Info("the embedded NATS server has opened its streams again", "after", complaint)
}

// tell logs an error that was not logged just before.
func (m *streamRepairer) logOnce(text, complaint string, err error) {
	if m.lastLogged == text {
		return
	}
	m.lastLogged = text
	m.log.Error(text, "error", err, "server", complaint)
}

// missing is a file or folder of the streams that is not where it was. A stream that is created or deleted just then has no files
// either, so the second look in a row counts.
func (m *streamRepairer) missing(s *server.Server) string {
	dir := m.root.Name()
	there, err := os.Stat(dir)
	if opened, failed := m.root.Stat(); failed == nil && (isGone(err) || err == nil && !os.SameFile(there, opened)) {
		return dir
	}
	if m.gone != "" && m.gone != dir { // the server tells of no stream while they are closed
		if _, err := os.Stat(m.gone); isGone(err) {
			return m.gone
		}
		return ""
	}
	before := m.suspect
	m.suspect = lostStream(s, dir)
	if m.suspect != before {
		return ""
	}
	return m.suspect
}

// lostStream is the file of a stream without which it is not found at the next start, where it is not there.
func lostStream(s *server.Server, dir string) string {
	all, err := s.Jsz(&server.JSzOptions{Accounts: true, Streams: true, Config: true})
	if err != nil {
		return ""
	}
	for _, account := range all.AccountDetails {
		for _, stream := range account.Streams {
			if stream.Config == nil || stream.Config.Storage != server.FileStorage {
				continue
			}
			file := streamFile(dir, account.Name, stream.Name)
			if _, err := os.Stat(file); isGone(err) {
				return file
			}
		}
	}
	return ""
}

func streamFile(dir, account, stream string) string {
	return filepath.Join(dir, account, "streams", stream, server.JetStreamMetaFile)
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// complaint is the first that the server has about its streams and that is not accepted. What it does not complain about any
// more is accepted no longer.
func (m *streamRepairer) healthError(s *server.Server) (first string) {
	all := healthErrors(s)
	maps.DeleteFunc(m.tolerated, func(e string, _ bool) bool { return !slices.Contains(all, e) })
	for _, e := range all {
		if !m.tolerated[e] {
			return e
		}
	}
	return ""
}

// accept takes all that the server complains about now for what opening the streams does not end.
func (m *streamRepairer) tolerateAll(s *server.Server) {
	m.tolerated = make(map[string]bool)
	for _, e := range healthErrors(s) {
		m.tolerated[e] = true
	}
}

// complaints leaves out folders that hold no stream: the server moves a stream that was deleted to a name that begins with a point,
// and removes its files while the client has its answer; and it leaves an empty one where it could not create a stream.
func healthErrors(s *server.Server) (all []string) {
	for _, e := range s.Healthz(&server.HealthzOptions{Details: true}).Errors {
		switch e.Type {
		case server.HealthzErrorJetStream:
		case server.HealthzErrorStream:
			if _, err := os.Stat(streamFile(s.StoreDir(), e.Account, e.Stream)); strings.HasPrefix(e.Stream, ".") || isGone(err) {
				continue
			}
		default:
			continue
		}
		all = append(all, e.Error)
	}
	return all
}

// tryRoom writes a file where the streams are.
func (m *streamRepairer) tryWrite() (err error) {
	f, err := os.CreateTemp(m.dir, "room-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(make([]byte, probeBytes)); err != nil {
		return err
	}
	return f.Sync()
}
