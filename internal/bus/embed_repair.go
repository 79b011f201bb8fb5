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

// repairInterval is how often the health of the embedded server is checked. An error counts when it
// is found twice in a row, because a stream that is being created or deleted looks like one that
// could not be recovered.
const repairInterval = 2 * time.Second

// healthTries is how often the server is asked at most for its health in one check.
const healthTries = 10

// probeBytes is how much room the disk must have before streams are reopened.
const probeBytes = 1 << 20

// streamRepairer reopens the streams of the embedded server. After a write error, as when the disk
// is full, the server keeps the error and takes nothing for that stream as long as it is open; some
// errors close all streams. If the files of a stream are removed, however, the server goes on as if
// nothing had happened, and acknowledges messages that nobody will find again.
type streamRepairer struct {
	server  *server.Server
	dir     string
	streams server.JetStreamConfig
	log     *slog.Logger
	// root is the folder of the streams as it was when they were opened. It is kept open, so that
	// another folder is not mistaken for it.
	root *os.File
	// gone is the file or folder that is not in its place; the streams are closed while it is set.
	// suspect may be gone: it was missing at the last check.
	gone, suspect string
	// tolerated are errors that reopening the streams does not end. lastError is the one that the
	// last check found, and lastLogged the text that was logged last.
	tolerated             map[string]bool
	lastError, lastLogged string
	stop                  context.CancelFunc
	stopped               chan struct{}
}

// startRepair has the streams of a server checked, until stopRepair.
func startRepair(s *server.Server, cfg EmbedConfig) (*streamRepairer, error) {
	root, err := os.Open(s.StoreDir())
	if err != nil {
		return nil, fmt.Errorf("open the folder: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &streamRepairer{
		server: s, dir: cfg.StoreDir, streams: *s.JetStreamConfig(), log: cfg.Logger, root: root, stop: stop, stopped: make(chan struct{}),
	}
	r.streams.StoreDir = cfg.StoreDir // the server appends its own folder
	r.tolerateAll()
	go func() {
		defer close(r.stopped)
		tick := time.NewTicker(repairInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.repair()
			case <-ctx.Done():
				return
			}
		}
	}()
	return r, nil
}

func (r *streamRepairer) stopRepair() {
	r.stop()
	<-r.stopped
	_ = r.root.Close()
}

// repair reopens the streams if one of them does not work any more and there is room on the disk.
// While their files are gone it closes the streams, so that nothing is acknowledged for them.
func (r *streamRepairer) repair() {
	wasGone := r.gone
	if r.gone = r.missing(); r.gone != "" {
		err := fmt.Errorf("%s was removed or replaced while the limiter was running", r.gone)
		if wasGone == "" {
			err = errors.Join(err, r.server.ShutdownJetStream())
		}
		r.logOnce("the files of the embedded NATS server's streams are gone: events wait in the outbox until they are restored, or the "+
			"limiter is restarted, which creates new streams", "", err)
		return
	}
	if wasGone != "" {
		r.open(wasGone + " was gone")
		return
	}
	problem, known := r.healthError()
	if !known {
		return // what the last check found still stands
	}
	persists := problem == r.lastError
	r.lastError = problem
	if problem == "" {
		r.lastLogged = ""
		return
	}
	if !persists {
		return
	}
	if err := r.tryWrite(); err != nil {
		r.logOnce("the embedded NATS server cannot write its streams; events wait until it can", problem, err)
		return
	}
	r.open(problem)
}

// open reopens the streams. cause is what was wrong with them.
func (r *streamRepairer) open(cause string) {
	err := r.reopen()
	if err == nil {
		var aside bool
		if aside, err = setConsumerAside(r.server, r.log); aside {
			err = r.reopen()
		}
	}
	if err == nil {
		if still, _ := r.healthError(); still != "" {
			r.tolerateAll()
			err = errors.New(still)
		}
	}
	if err != nil {
		r.logOnce("the embedded NATS server cannot reopen its streams; restart the limiter", cause, err)
		return
	}
	r.lastLogged = ""
	r.log.Info("the embedded NATS server has reopened its streams", "after", cause)
}

// reopen closes the streams and opens them.
func (r *streamRepairer) reopen() error {
	if err := r.server.ShutdownJetStream(); err != nil {
		return err
	}
	streams := r.streams
	return r.server.EnableJetStream(&streams)
}

// logOnce logs an error, unless it logged the same text last.
func (r *streamRepairer) logOnce(text, cause string, err error) {
	if r.lastLogged == text {
		return
	}
	r.lastLogged = text
	r.log.Error(text, "error", err, "server", cause)
}

// missing returns a file or folder of the streams that is not where it was, or an empty text. A
// stream that is being created or deleted has no files either, so a stream must be missing twice in
// a row.
func (r *streamRepairer) missing() string {
	dir := r.root.Name()
	there, err := os.Stat(dir)
	if opened, failed := r.root.Stat(); failed == nil && (isGone(err) || err == nil && !os.SameFile(there, opened)) {
		return dir
	}
	if r.gone != "" && r.gone != dir { // the server lists no streams while they are closed
		if _, err := os.Stat(r.gone); isGone(err) {
			return r.gone
		}
		return ""
	}
	before := r.suspect
	r.suspect = lostStream(r.server, dir)
	if r.suspect != before {
		return ""
	}
	return r.suspect
}

// lostStream returns the file that a stream needs to be found at the next start, if it is missing.
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

// healthError is the first error of the server's streams that is not tolerated. Errors that the
// server does not report any more are no longer tolerated. It is not known if the server reports
// nothing about its streams.
func (r *streamRepairer) healthError() (first string, known bool) {
	all, known := healthErrors(r.server)
	if !known {
		return "", false
	}
	maps.DeleteFunc(r.tolerated, func(e string, _ bool) bool { return !slices.Contains(all, e) })
	for _, e := range all {
		if !r.tolerated[e] {
			return e, true
		}
	}
	return "", true
}

// tolerateAll tolerates all that the server reports now.
func (r *streamRepairer) tolerateAll() {
	all, known := healthErrors(r.server)
	if !known {
		return
	}
	r.tolerated = make(map[string]bool)
	for _, e := range all {
		r.tolerated[e] = true
	}
}

// askHealth asks the server for its health. Before it looks at its streams, the server has a
// millisecond to find that it listens, which a goroutine may spend without a processor. It then
// says that it is not ready for connections, and nothing about its streams. So it is asked again, and
// ok says that it looked at them.
func askHealth(s *server.Server) (health *server.HealthStatus, ok bool) {
	for range healthTries {
		health = s.Healthz(&server.HealthzOptions{Details: true})
		ok = !slices.ContainsFunc(health.Errors, func(e server.HealthzError) bool { return e.Type == server.HealthzErrorConn })
		if ok {
			break
		}
	}
	return health, ok
}

// healthErrors returns what the server reports about its streams, and whether it does. It leaves out
// folders that hold no stream: the server renames a deleted stream to a name that begins with a dot,
// and removes its files after the client has its answer; and it leaves an empty folder if it could
// not create a stream.
func healthErrors(s *server.Server) (all []string, known bool) {
	health, known := askHealth(s)
	for _, e := range health.Errors {
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
	return all, known
}

// tryWrite writes a file where the streams are.
func (r *streamRepairer) tryWrite() (err error) {
	f, err := os.CreateTemp(r.dir, "room-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if _, err := f.Write(make([]byte, probeBytes)); err != nil {
		return err
	}
	return f.Sync()
}
