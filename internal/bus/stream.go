package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// eventSubjects are all subjects of the stream of events. With limits.> the stream would answer
// requests, because a stream acknowledges what has a reply subject.
var eventSubjects = []string{limits.EventWarning, limits.EventExceeded, limits.EventReport}

// alertableSubjects are the subjects of the events that alerts are made of.
var alertableSubjects = []string{limits.EventWarning, limits.EventExceeded}

// maxMessage bounds a message of the stream of events, with its headers, in bytes: an alerter holds
// as many in memory as it pulls at a time. An event has a few thousand bytes. A report has up to
// about 150,000, as a character may be escaped as six.
const maxMessage = 256 << 10

// eventStream is the configuration with which the stream of events is created.
func eventStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: limits.EventStream, Subjects: eventSubjects, Description: "Events of the limiter, as CloudEvents",
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: 7 * 24 * time.Hour, MaxBytes: 1 << 30, MaxMsgSize: maxMessage, Duplicates: 10 * time.Minute,
	}
}

// alertStream is the configuration with which the stream of alerts is created. Its window for
// duplicates is longer than that of events, because a delivery whose acknowledgement was lost is
// tried again minutes later.
func alertStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        limits.AlertStream,
		Subjects:    []string{limits.EventAlertRaised, limits.EventAlertResolved, limits.EventAlertDigest, limits.EventAlertTest},
		Description: "Alerts of the limiter, as CloudEvents",
		Storage:     jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: 30 * 24 * time.Hour, MaxBytes: 256 << 20, Duplicates: time.Hour,
	}
}

// streamWatch makes sure of a stream, and tells the log of one that was made anew.
type streamWatch struct {
	log  *slog.Logger
	seen atomic.Bool
	// ready says that the stream was there since the last failure of whoever uses it, who clears it.
	ready atomic.Bool
}

// open is ensure, unless the stream is ready.
func (w *streamWatch) open(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	if w.ready.Load() {
		return nil
	}
	if err := w.ensure(ctx, js, want); err != nil {
		return err
	}
	w.ready.Store(true)
	return nil
}

// ensure is ensureStream. Whoever had seen the stream before must learn that it, and what was in it, is gone.
func (w *streamWatch) ensure(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	created, err := ensureStream(ctx, js, want)
	if err != nil {
		return err
	}
	before := w.seen.Swap(true)
	if !created {
		return nil
	}
	log := w.log.With("stream", want.Name, "replicas", max(want.Replicas, 1))
	if before {
		log.Error("the stream was gone and has been made anew; what was in it and not taken yet is lost")
	} else {
		log.Info("stream created, because there was none")
	}
	if js.Conn().ConnectedClusterName() != "" {
		log.Warn("while the one server that has the stream is down, nothing is stored in it; in a cluster, give it replicas: " +
			"nats stream edit " + want.Name + " --replicas 3")
	}
	return nil
}

// ensureStream creates the stream if it is missing, and says whether it did. To an existing one it adds the subjects that it
// lacks; everything else about it is up to its operator.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (created bool, err error) {
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, created, err = createStream(ctx, js, want)
	}
	if err != nil {
		return false, wrapStream("look up", want.Name, err)
	}
	cfg := s.CachedInfo().Config
	if cfg.NoAck {
		return created, fmt.Errorf("publish to stream %s: acknowledgements are disabled (no_ack), so nothing confirms that events are stored; enable them: "+
			"nats stream edit %s --ack", want.Name, want.Name)
	}
	if subject, taken := requestSubjectIn(cfg.Subjects); taken {
		return created, fmt.Errorf("publish to stream %s: its subject %s captures requests, which the stream stores and answers in place of a limiter; change its subjects: "+
			"nats stream edit %s --subjects %s", want.Name, subject, want.Name, strings.Join(want.Subjects, ","))
	}
	missing := missingSubjects(want.Subjects, cfg.Subjects)
	if len(missing) == 0 {
		return created, nil
	}
	cfg.Subjects = append(cfg.Subjects, missing...)
	_, err = js.UpdateStream(ctx, cfg)
	return created, wrapStream("add subjects to", want.Name, err)
}

// creating is held while a stream is created: the parts of a process that begin at the same time would each take
// themselves for the one that created it, because the server answers all of them alike.
var creating = make(slots, 1)

// createStream creates the stream, unless another part of the process has done so. If another worker creates it at the same moment, the server may
// refuse this one in more than one way (the name is taken, the space is reserved twice). So a
// refusal counts only if there still is no stream a little later.
//
// A server may allow no such window for duplicates. Then the stream gets what it allows, up to 2
// minutes: a repeat that comes later has the same id.
func createStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (s jetstream.Stream, created bool, err error) {
	select {
	case creating <- struct{}{}:
		defer func() { <-creating }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if s, err = js.Stream(ctx, want.Name); err == nil {
		return s, false, nil
	}
	for try := 1; ; try++ {
		s, err := js.CreateStream(ctx, want)
		if err == nil {
			return s, true, nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return nil, false, err
		}
		if s, lookupErr := js.Stream(ctx, want.Name); lookupErr == nil {
			return s, false, nil
		}
		if hasCode(err, errInvalidStream) {
			want.Duplicates = 0 // the server's choice
		}
		if try == 3 {
			return nil, false, fmt.Errorf("create it: %w", explainNoRoom(err, want))
		}
	}
}

// Codes of the server's errors.
const (
	// A stream is larger than the room that an account, a cluster or a server has left.
	errNoRoomOfAccount jetstream.ErrorCode = 10002
	errNoRoomInCluster jetstream.ErrorCode = 10023
	errNoRoomOfServer  jetstream.ErrorCode = 10047
	// It cannot read or write the files of a consumer.
	errConsumerStore jetstream.ErrorCode = 10012
	// It does not allow the configuration of a stream, for whatever reason.
	errInvalidStream jetstream.ErrorCode = 10052
	// A message was stored by another stream than expected.
	errNotTheStream jetstream.ErrorCode = 10060
	// Subjects belong to another stream.
	errSubjectsOverlap jetstream.ErrorCode = 10065
	// No replica of a stream of a cluster runs.
	errStreamOffline jetstream.ErrorCode = 10118
	// A consumer has a larger max_ack_pending than the server, the account or the stream allows.
	errMaxAckPending jetstream.ErrorCode = 10121
)

// hasCode reports whether err is an error of the server with one of the codes.
func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode)
}

func wrapStream(act, stream string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s stream %s: %w", act, stream, explainJetStream(err))
}

// explainJetStream adds to an error of JetStream what to do about it, if that is known.
func explainJetStream(err error) error { return explainNoAnswer(explainOtherStream(err)) }

// explainNoAnswer says where to look if JetStream does not answer, as when it cannot write, or is
// not enabled.
func explainNoAnswer(err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) {
		return fmt.Errorf("%w: JetStream is not enabled on this NATS server, or not for this account, or has no leader yet, "+
			"or this is a leaf node without default_js_domain (docs/operations.md, One JetStream), "+
			"or the server of the cluster that has the stream is down", err)
	}
	if hasCode(err, errStreamOffline) {
		return fmt.Errorf("%w: the server of the cluster that has the stream is down", err)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		return fmt.Errorf("%w: the NATS server did not answer in time; check its log, whether its disk is full, whether "+
			"the server of the cluster that has the stream is up (docs/operations.md, A full disk), and whether this user may "+
			"subscribe to its inbox (--nats-inbox-prefix)", err)
	}
	return err
}

// explainNoRoom says what to do if the server has no room for the stream: it reserves all that the
// stream may hold when it is created.
func explainNoRoom(err error, want jetstream.StreamConfig) error {
	if hasCode(err, errNoRoomOfAccount, errNoRoomInCluster, errNoRoomOfServer) {
		return fmt.Errorf("%w: the stream reserves %d MiB; give NATS more room (max_file_store, a larger disk), or create a smaller stream: "+
			"nats stream add %s --subjects %s --max-bytes SIZE", err, want.MaxBytes>>20, want.Name, strings.Join(want.Subjects, ","))
	}
	return err
}

// explainOtherStream says what to do if another stream has the subjects.
func explainOtherStream(err error) error {
	if hasCode(err, errNotTheStream, errSubjectsOverlap) {
		return fmt.Errorf("%w: another stream has its subjects; find that stream and remove the subjects from it: nats stream ls --subject SUBJECT", err)
	}
	return err
}

// requestSubjects are the subjects of requests that are answered.
var requestSubjects = []string{limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectRefund, limits.SubjectSettle,
	limits.SubjectStatus, limits.SubjectVerify, "limits.admin.>"}

// requestSubjectIn returns the first of a stream's subjects that matches some request.
func requestSubjectIn(subjects []string) (subject string, taken bool) {
	for _, subject := range subjects {
		if slices.ContainsFunc(requestSubjects, func(r string) bool { return overlap(subject, r) }) {
			return subject, true
		}
	}
	return "", false
}

// overlap reports whether some subject matches both patterns.
func overlap(a, b string) bool {
	s, t := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(s), len(t)) {
		switch {
		case s[i] == ">" || t[i] == ">":
			return true
		case s[i] != t[i] && s[i] != "*" && t[i] != "*":
			return false
		}
	}
	return len(s) == len(t)
}

// missingSubjects returns the subjects that no pattern matches.
func missingSubjects(subjects, patterns []string) (missing []string) {
	for _, subject := range subjects {
		if !slices.ContainsFunc(patterns, func(p string) bool { return overlap(p, subject) }) {
			missing = append(missing, subject)
		}
	}
	return missing
}
