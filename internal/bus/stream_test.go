package bus

import (
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestOperatorsStreamIsLeftAlone: only what is missing is added.
func TestOperatorsStreamIsLeftAlone(t *testing.T) {
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	ctx := t.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: limits.EventStream, Subjects: []string{"other", "limits.warning"},
		MaxAge: time.Hour, MaxMsgs: 7}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := ensureStream(ctx, js, eventStream()); err != nil {
			t.Fatal(err)
		}
	}
	s, err := js.Stream(ctx, limits.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	got := s.CachedInfo().Config
	if got.MaxAge != time.Hour || got.MaxMsgs != 7 || got.MaxMsgSize != -1 || !slices.Equal(got.Subjects, []string{"other", "limits.warning", "limits.exceeded", "limits.report"}) {
		t.Errorf("%+v", got)
	}
}

func TestStreamIsCreatedOnce(t *testing.T) {
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := ensureStream(t.Context(), js, eventStream()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s, err := js.Stream(t.Context(), limits.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	got := s.CachedInfo().Config
	if got.MaxAge != 7*24*time.Hour || got.MaxBytes != 1<<30 || got.Duplicates != 10*time.Minute ||
		!slices.Equal(got.Subjects, []string{"limits.warning", "limits.exceeded", "limits.report"}) {
		t.Errorf("%+v", got)
	}
}

func TestOverlap(t *testing.T) {
	for pattern, want := range map[string]bool{"limits.warning": true, "limits.*": true, "limits.>": true, ">": true, "*.warning": true,
		"limits": false, "limits.warning.>": false, "limits.exceeded": false, "*": false, "limits.warning.x": false} {
		if overlap(pattern, "limits.warning") != want {
			t.Errorf("%s: %v", pattern, !want)
		}
	}
}

// TestOverlappingStreamIsReported: a stream cannot be created with, or given, subjects of another
// one.
func TestOverlappingStreamIsReported(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	add := func(name string, subjects ...string) {
		t.Helper()
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects}); err != nil {
			t.Fatal(err)
		}
	}
	named := func() {
		t.Helper()
		if _, err := ensureStream(t.Context(), js, eventStream()); err == nil || !strings.Contains(err.Error(), "nats stream ls --subject SUBJECT") {
			t.Errorf("%v", err)
		}
	}
	add("OTHER", limits.EventExceeded)
	named()
	add(limits.EventStream, limits.EventWarning)
	named()
}

// TestStreamWithoutAcksIsReported: otherwise the outbox would never empty, and the log would show a
// deadline alone.
func TestStreamWithoutAcksIsReported(t *testing.T) {
	t.Parallel()
	js := testenv.JetStream(t, dial(t, testenv.NATS(t).ClientURL()))
	mute := eventStream()
	mute.NoAck = true
	if _, err := js.CreateStream(t.Context(), mute); err != nil {
		t.Fatal(err)
	}
	if _, err := ensureStream(t.Context(), js, eventStream()); err == nil || !strings.Contains(err.Error(), "no_ack") {
		t.Errorf("%v", err)
	}
}

// TestStreamThatCapturesRequestsIsReported: it would acknowledge requests before a limiter has
// answered.
func TestStreamThatCapturesRequestsIsReported(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{"limits.>", "limits.*", "limits.admin.*.*", "limits.admin.reset", "limits.verify"} {
		js := testenv.JetStream(t, dial(t, testenv.NATS(t).ClientURL()))
		greedy := eventStream()
		greedy.Subjects = []string{subject}
		if _, err := js.CreateStream(t.Context(), greedy); err != nil {
			t.Fatal(err)
		}
		_, err := ensureStream(t.Context(), js, eventStream())
		if want := "its subject " + subject + " captures requests"; err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "nats stream edit LIMITS --subjects limits.warning,limits.exceeded,limits.report") {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if subject, taken := requestSubjectIn([]string{"limits.warning", "limits.usage", "limits.report", "alerts.>", "orders.*", "limits", "limits.admin", "*"}); taken {
		t.Errorf("%s takes requests", subject)
	}
}

// TestStreamBoundsMessageSize: an alerter holds 256 messages in memory. The largest that are
// published fit.
func TestStreamBoundsMessageSize(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	// Each of these characters is written as six.
	key, name, user := strings.Repeat("<", limits.MaxKeyBytes), strings.Repeat("<", limits.MaxNameBytes), strings.Repeat("<", limits.MaxAttributeBytes)
	e := exceeded(math.MaxInt)
	e.Key, e.Name, e.Policy, e.User, e.Limit, e.Denied = key, name, name, user, math.MaxInt64, math.MaxInt64
	if _, err := js.PublishMsg(t.Context(), eventMsg(t, &e)); err != nil {
		t.Error(err)
	}
	row := limits.TopRow{Key: key, Policy: name, User: user, Allowed: math.MaxInt64, Denied: math.MaxInt64, Cost: math.MaxInt64, Peak: math.MaxInt64}
	rows := slices.Repeat([]limits.TopRow{row}, limits.MaxReportRows)
	r := &limits.Report{Date: "2026-05-17", Since: math.MaxInt64, Until: math.MaxInt64, Used: rows, Denied: rows}
	if err := PublishReport(t.Context(), nc, Origin{Source: "urn:test", SchemaBase: "http://h/schemas"}, r, time.Now(), slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	for size, want := range map[int]error{256 << 10: nil, 256<<10 + 1: jetstream.ErrStreamMessageExceedsMaximum} {
		if _, err := js.Publish(t.Context(), limits.EventExceeded, make([]byte, size)); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}

// TestStreamWithoutRoomIsReported: by default a server gives its streams three quarters of what is
// free on its disk, and reserves the whole of each stream.
func TestStreamWithoutRoomIsReported(t *testing.T) {
	t.Parallel()
	js := testenv.JetStream(t, dial(t, testenv.NATS(t, func(o *natsserver.Options) { o.JetStreamMaxStore = 512 << 20 }).ClientURL()))
	if _, err := ensureStream(t.Context(), js, alertStream()); err != nil {
		t.Fatal(err)
	}
	_, err := ensureStream(t.Context(), js, eventStream())
	for _, want := range []string{"create it", "1024 MiB", "max_file_store", "nats stream add LIMITS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

// TestDisabledJetStreamIsReported: what nats.go says names no part of the server.
func TestDisabledJetStreamIsReported(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t, func(o *natsserver.Options) { o.JetStream = false }).ClientURL())
	js := testenv.JetStream(t, nc)
	if _, err := ensureStream(t.Context(), js, eventStream()); err == nil || !strings.Contains(err.Error(), "JetStream is not enabled") {
		t.Error(err)
	}
}

// TestLostStreamsAreTold: a stream that is created at the first start is no news; one that a process had seen before, and has
// to make anew, has taken events with it.
func TestLostStreamsAreTold(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	log := new(logBuffer)
	w := streamWatch{log: slog.New(slog.NewTextHandler(log, nil))}
	ensure := func(level, text string) {
		t.Helper()
		before := len(log.String())
		if err := w.ensure(t.Context(), js, eventStream()); err != nil {
			t.Fatal(err)
		}
		got := log.String()[before:]
		if level == "" && got != "" || !strings.Contains(got, level) || !strings.Contains(got, text) || level != "" && !strings.Contains(got, "stream=LIMITS replicas=1") {
			t.Errorf("got %q, want %s %s", got, level, text)
		}
	}
	ensure("level=INFO", "stream created")
	ensure("", "")
	if err := js.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	ensure("level=ERROR", "made anew")
}

// TestTheFirstStartTellsOnceOfItsStream, although several parts of a process make sure of it at the same time.
func TestTheFirstStartTellsOnceOfItsStream(t *testing.T) {
	t.Parallel()
	js := testenv.JetStream(t, dial(t, testenv.NATS(t).ClientURL()))
	log := new(logBuffer)
	var all sync.WaitGroup
	for range 8 {
		w := &streamWatch{log: slog.New(slog.NewTextHandler(log, nil))}
		all.Go(func() {
			if err := w.ensure(t.Context(), js, eventStream()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := strings.Count(log.String(), "stream created"); n != 1 {
		t.Errorf("told %d times: %s", n, log.String())
	}
}

// TestAReportTellsOfALostStream: on a quiet day it is the first that needs the stream.
func TestAReportTellsOfALostStream(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	log := new(logBuffer)
	err := PublishReport(t.Context(), nc, Origin{Source: "urn:test", SchemaBase: "http://h/schemas"}, &limits.Report{Date: "2026-05-17"}, time.Now(),
		slog.New(slog.NewTextHandler(log, nil)))
	if got := log.String(); err != nil || !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "made anew") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestErrorsSayThatTheServerOfAStreamMayBeDown: publishers and look-ups get these from a cluster that has lost the only
// replica.
func TestErrorsSayThatTheServerOfAStreamMayBeDown(t *testing.T) {
	t.Parallel()
	for _, err := range []error{jetstream.ErrNoStreamResponse, nats.ErrNoResponders, &jetstream.APIError{ErrorCode: 10118, Description: "stream is offline"}} {
		if got := explainJetStream(err); !errors.Is(got, err) || !strings.Contains(got.Error(), "the server of the cluster that has the stream is down") {
			t.Error(got)
		}
	}
}

// TestErrorsOfOtherKindsAreLeftAsTheyAre: advice that does not fit misleads.
func TestErrorsOfOtherKindsAreLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("broken pipe"), &jetstream.APIError{ErrorCode: 10077, Description: "maximum messages exceeded"}} {
		if got := explainNoRoom(explainJetStream(err), eventStream()); got != err { //nolint:errorlint // it must be the same
			t.Error(got)
		}
	}
}

// TestFullStreamsLoseTheOldest, and refuse nothing: a new event or alert tells more than an old one.
func TestFullStreamsLoseTheOldest(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	for _, want := range []jetstream.StreamConfig{eventStream(), alertStream()} {
		want.MaxMsgs = 1
		if _, err := ensureStream(t.Context(), js, want); err != nil {
			t.Fatal(err)
		}
		for sequence := range uint64(3) {
			ack, err := js.Publish(t.Context(), want.Subjects[0], []byte("{}"))
			if err != nil || ack.Sequence != sequence+1 {
				t.Errorf("%s: %+v, %v", want.Name, ack, err)
			}
		}
	}
}
