package bus

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/testenv"
)

// asker is a worker that asks when the test says so.
func asker(t *testing.T, nc *nats.Conn) *lead {
	t.Helper()
	l := &lead{cfg: LeadConfig{Store: func() string { return "db" }, times: patientTimes}, conn: nc, inbox: make(chan *nats.Msg, 256),
		log: slog.New(slog.DiscardHandler)}
	l.decideAs("asker")
	var err error
	if l.answerSub, err = nc.ChanSubscribe(subjectLeadAnswers+"asker.*", l.inbox); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTheAnswerToTheLastQuestionIsLate, too: that nobody decided then says nothing about now.
func TestTheAnswerToTheLastQuestionIsLate(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	l := asker(t, dial(t, url))
	if _, _, err := l.ask(t.Context(), rank{Worker: "asker"}, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("with nobody there: %v, want %v", err, nats.ErrNoResponders)
	}
	newImpostor(t, url, l.subject())
	l.inbox <- &nats.Msg{Subject: subjectLeadAnswers + "asker.1", Header: nats.Header{"Status": {"503"}}}
	l.inbox <- &nats.Msg{Subject: subjectLeadAnswers + "asker.1", Data: []byte(`{"since":1,"worker":"gone"}`)}
	if other, _, err := l.ask(t.Context(), rank{Worker: "asker"}, patience); err != nil || other.Worker == "gone" {
		t.Errorf("%+v, %v; want the worker that answers", other, err)
	}
}
