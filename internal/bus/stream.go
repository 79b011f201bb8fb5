package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// eventSubjects are all the stream of events takes: with limits.> it would answer requests, as streams acknowledge what
// has a reply subject.
var eventSubjects = []string{limits.EventWarning, limits.EventExceeded, limits.EventReport}

// crossings are the subjects of the events that alerts are made of.
var alertableSubjects = []string{limits.EventWarning, limits.EventExceeded}

// maxMessage is the most bytes of a message of the stream of events, with its headers: an alerter has as many in memory as it pulls
// at a time. An event has a few thousand, and a report, of which a character may be written as six, up to about 150,000.
const maxMessage = 256 << 10

// eventStream is the stream of events as made when there is none.
func eventStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: limits.EventStream, Subjects: eventSubjects, Description: "Events of the limiter, as CloudEvents",
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: 7 * 24 * time.Hour, MaxBytes: 1 << 30, MaxMsgSize: maxMessage, Duplicates: 10 * time.Minute,
	}
}

// alertStream is the stream of what is told of alerts, as made when there is none. Its window of duplicates is longer than
// that of events, because a delivery whose acknowledgement was lost is tried again minutes later.
func alertStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        limits.AlertStream,
		Subjects:    []string{limits.EventAlertRaised, limits.EventAlertResolved, limits.EventAlertDigest, limits.EventAlertTest},
		Description: "Alerts of the limiter, as CloudEvents",
		Storage:     jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: 30 * 24 * time.Hour, MaxBytes: 256 << 20, Duplicates: time.Hour,
	}
}

// ensureStream makes the stream, or adds to one that is there the subjects it lacks; everything else of it is its
// operator's.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = createStream(ctx, js, want)
	}
	if err != nil {
		return wrapStream("look up", want.Name, err)
	}
	cfg := s.CachedInfo().Config
	if cfg.NoAck {
		return fmt.Errorf("publish to stream %s: it acknowledges nothing (no_ack), so no event would be known to be there; "+
			"nats stream edit %s --ack", want.Name, want.Name)
	}
	if subject, taken := requestSubjectIn(cfg.Subjects); taken {
		return fmt.Errorf("publish to stream %s: its subject %s takes requests, which it answers in place of a limiter, and keeps; "+
			"nats stream edit %s --subjects %s", want.Name, subject, want.Name, strings.Join(want.Subjects, ","))
	}
	missing := missingSubjects(want.Subjects, cfg.Subjects)
	if len(missing) == 0 {
		return nil
	}
	cfg.Subjects = append(cfg.Subjects, missing...)
	_, err = js.UpdateStream(ctx, cfg)
	return wrapStream("add subjects to", want.Name, err)
}

// createStream makes the stream. When another worker makes it at the same moment the server may refuse this one in
// more than one way (the name is taken, the space is reserved twice), so a refusal counts only if there is still no
// stream a little later.
func createStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (jetstream.Stream, error) {
	for try := 1; ; try++ {
		s, err := js.CreateStream(ctx, want)
		if err == nil {
			return s, nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return nil, err
		}
		if s, lookup := js.Stream(ctx, want.Name); lookup == nil {
			return s, nil
		}
		if try == 3 {
			return nil, fmt.Errorf("create it: %w", explainNoRoom(err, want))
		}
	}
}

func wrapStream(act, stream string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s stream %s: %w", act, stream, explainJetStream(err))
}

// wayOut says of an error of JetStream what to do about it, where that is known.
func explainJetStream(err error) error { return explainNoAnswer(explainOtherStream(err)) }

// unanswered says where to look when JetStream says nothing, as it does of what it cannot write, or is not there.
func explainNoAnswer(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: JetStream is not enabled on this NATS server, or not for this account, or has no leader yet", err)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		return fmt.Errorf("%w: the NATS server did not answer in time; look at its log, and whether its disk is full "+
			"(docs/operations.md, A full disk)", err)
	}
	return err
}

// The server's codes for a stream that is larger than what is left of the room of an account, a cluster or a server.
const (
	errNoRoomOfAccount jetstream.ErrorCode = 10002
	errNoRoomInCluster jetstream.ErrorCode = 10023
	errNoRoomOfServer  jetstream.ErrorCode = 10047
)

// noRoom says what to do where the server has no room for all that the stream may keep: it reserves that when it makes one.
func explainNoRoom(err error, want jetstream.StreamConfig) error {
	api, is := errors.AsType[*jetstream.APIError](err)
	if is && (api.ErrorCode == errNoRoomOfAccount || api.ErrorCode == errNoRoomInCluster || api.ErrorCode == errNoRoomOfServer) {
		return fmt.Errorf("%w: it reserves %d MiB; give NATS more room (max_file_store, a larger disk), or make a smaller one: "+
			"nats stream add %s --subjects %s --max-bytes SIZE", err, want.MaxBytes>>20, want.Name, strings.Join(want.Subjects, ","))
	}
	return err
}

// The server's codes for a message that another stream took than it was meant for, and for subjects that another stream has.
const (
	errNotTheStream    jetstream.ErrorCode = 10060
	errSubjectsOverlap jetstream.ErrorCode = 10065
)

// inTheWay says what to do about another stream with the subjects.
func explainOtherStream(err error) error {
	if api, is := errors.AsType[*jetstream.APIError](err); is && (api.ErrorCode == errNotTheStream || api.ErrorCode == errSubjectsOverlap) {
		return fmt.Errorf("%w: another stream has its subjects; find it and take them from it: nats stream ls --subject SUBJECT", err)
	}
	return err
}

// requestSubjects are those of requests that are answered.
var requestSubjects = []string{limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectRefund, limits.SubjectSettle,
	limits.SubjectStatus, limits.SubjectVerify, "limits.admin.>"}

// takesRequests gives the first of a stream's subjects that takes some.
func requestSubjectIn(subjects []string) (subject string, taken bool) {
	for _, subject := range subjects {
		if slices.ContainsFunc(requestSubjects, func(r string) bool { return overlap(subject, r) }) {
			return subject, true
		}
	}
	return "", false
}

// overlap tells whether there are subjects that both patterns take.
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

// missingSubjects gives the subjects that none of the patterns takes.
func missingSubjects(subjects, patterns []string) (missing []string) {
	for _, subject := range subjects {
		if !slices.ContainsFunc(patterns, func(p string) bool { return overlap(p, subject) }) {
			missing = append(missing, subject)
		}
	}
	return missing
}
