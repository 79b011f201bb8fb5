package bus

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/natsconn"
)

// How workers ask each other who decides.

const (
	// answerTimeout bounds the wait for an answer, without the network. A worker that hangs is still
	// subscribed, and does not answer.
	answerTimeout = 300 * time.Millisecond

	// Workers are asked on subjectLead, a dot and a name of the store, and answered below
	// subjectLeadAnswers.
	subjectLead        = "limits.internal.lead"
	subjectLeadAnswers = subjectLead + ".answers."
	// maxLeadBytes bounds a question and an answer.
	maxLeadBytes = 512
)

// errNoAnswer says that a question had no answer.
var errNoAnswer = errors.New("no worker answered")

// rank decides which of two workers goes on deciding: the one that has decided for longer. It is the
// body of a question and of an answer.
type rank struct {
	// Since is when the worker began to decide, in Unix nanoseconds. 0 says that it stands by for any
	// worker that decides.
	Since int64 `json:"since"`
	// Worker is the host, the process id and a random part.
	Worker string `json:"worker"`
	// Leaving says that the worker is stopping, and decides only until another one does.
	Leaving bool `json:"leaving,omitzero"`
	// RoundTrip is how far the worker is from its server, in nanoseconds; 0 if it does not know, or is
	// of a release that does not say.
	RoundTrip int64 `json:"roundTrip,omitzero"`
}

func (r rank) valid() error {
	switch {
	case r.Worker == "":
		return errors.New("worker is missing")
	case r.Since < 0:
		return fmt.Errorf("since %d is negative", r.Since)
	}
	return nil
}

// outranks reports whether r goes on if both decide.
func (r rank) outranks(o rank) bool {
	if o.Since == 0 {
		o.Since = math.MaxInt64
	}
	return cmp.Or(cmp.Compare(r.Since, o.Since), cmp.Compare(r.Worker, o.Worker)) < 0
}

// subject is where the workers of this store are asked that are connected to the same NATS cluster. A
// distant cluster has a deciding worker of its own. It changes when the connection leads to another
// cluster, or the store has been moved. The first worker that learns of it finds nobody there and
// decides, too, and the usual question settles who goes on once the others ask there as well.
func (l *lead) subject() string {
	sum := sha256.Sum256([]byte(l.cfg.Store() + "\n" + l.conn.ConnectedClusterName()))
	return subjectLead + "." + hex.EncodeToString(sum[:8])
}

// setAnswering subscribes to questions, or ends that. While the worker is mute it does not answer, so
// that nobody stands by for it.
func (l *lead) setAnswering(on bool) {
	subject := l.subject()
	on = on && time.Now().After(l.muteUntil)
	if l.questionSub != nil && (!on || l.questionSub.Subject != subject) {
		_ = l.questionSub.Unsubscribe() // it fails when the connection is closed
		l.questionSub = nil
	}
	if !on || l.questionSub != nil {
		return
	}
	var err error
	if l.questionSub, err = l.conn.Subscribe(subject, l.answerQuestion); err != nil {
		l.logRetry("cannot subscribe to "+subject+", will retry", err)
	}
}

// answerQuestion tells a worker that asks that this one decides, so that it stands by if it has the
// lower rank.
func (l *lead) answerQuestion(m *nats.Msg) {
	other, err := decodeBroadcast(m.Data, maxLeadBytes, rank.valid)
	if err == nil && (!strings.HasPrefix(m.Reply, subjectLeadAnswers) || len(m.Reply) > natsconn.MaxReplySubject) {
		err = fmt.Errorf("reply subject %q is not allowed", short(m.Reply))
	}
	if err != nil {
		if n := l.ignored.due(); n > 0 {
			l.log.Warn("ignored an invalid question about which worker decides", "subject", m.Subject, "error", err, "messages", n)
		}
		return
	}
	own := *l.own.Load()
	if other.Worker == own.Worker || other.Leaving && own.Leaving {
		return
	}
	if own.outranks(other) && !other.Leaving {
		now := time.Now()
		l.standbyAskedAt.Store(&now)
	}
	if data, err := json.Marshal(own); err == nil {
		_ = l.conn.Publish(m.Reply, data) // a worker without an answer decides, too
	}
}

// ask looks for a worker that decides and outranks own, and returns it with the time that its answer
// took. The error is [nats.ErrNoResponders] if no worker decides that can, and [errNoAnswer] if none
// with a higher rank answered. The question is sent again after each resend: a worker that stops may
// leave the last one unanswered.
func (l *lead) ask(ctx context.Context, own rank, resend time.Duration) (other rank, took time.Duration, err error) {
	data, err := json.Marshal(own)
	if err != nil {
		return other, 0, err
	}
	subject, inbox, first := l.subject(), strings.TrimSuffix(l.answerSub.Subject, "*"), l.questions+1
	began, wait := time.Now(), l.answerWait()
	for time.Since(began) < wait {
		if !connected(l.conn) {
			return other, 0, nats.ErrDisconnected // the question would be buffered and sent later
		}
		l.questions++
		if err = l.conn.PublishRequest(subject, inbox+strconv.Itoa(l.questions), data); err != nil {
			return other, 0, err
		}
		other, err = l.awaitAnswer(ctx, own, first, resend)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return other, time.Since(began), err
		}
	}
	return other, 0, fmt.Errorf("%w within %s", errNoAnswer, wait.Round(time.Millisecond))
}

// awaitAnswer waits for an answer of a worker that outranks own, to question number first or a later
// one. If a worker of lower rank answers, it is not mute, so it has met no worker that hangs, and
// this one need not be mute any longer.
func (l *lead) awaitAnswer(ctx context.Context, own rank, first int, timeout time.Duration) (other rank, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		var m *nats.Msg
		select {
		case m = <-l.inbox:
		case <-ctx.Done():
			return other, ctx.Err()
		}
		n, _ := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		switch {
		case n < first: // to an earlier question
		case len(m.Data) == 0 && m.Header.Get("Status") == "503":
			return other, nats.ErrNoResponders
		default:
			other, err = decodeBroadcast(m.Data, maxLeadBytes, rank.valid)
			switch {
			case err != nil: // not from a worker
			case other.outranks(own):
				return other, nil
			default:
				l.muteUntil = time.Time{}
			}
		}
	}
}
