package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/natsconn"
)

// Of the workers on one store, in one NATS cluster, one decides, and the others stand by: transactions of one database run one after
// another, so who shares them has smaller batches, and reads what others wrote. That is a matter of speed alone: any number of workers
// may decide at the same time, as they do for moments, and when in doubt a worker decides.
//
// A worker that decides, and can, answers on a subject that has the store in its name. The others ask there all the time: when
// nobody is subscribed the server says so at once. Of two that decide the one that has for longer goes on.
const (
	// followEvery is how often a worker that stands by asks, and settleEvery how often one that decides does, which looks every
	// ableEvery whether it can.
	standbyAskInterval, decidingAskInterval, checkInterval = 50 * time.Millisecond, time.Second, 100 * time.Millisecond
	// silence is how long an answer may take. A worker that hangs is subscribed, and says nothing.
	answerTimeout = 300 * time.Millisecond
	// slowAnswer is from when on a worker has too much to do alone, on the average of some answers, and promptAnswer below what
	// another may stand by for it again.
	slowAnswer, promptAnswer = 30 * time.Millisecond, 10 * time.Millisecond
	// A worker goes on beside one that was slow for holdLeast, and for twice as long each time, up to holdMost.
	minOverlap, maxOverlap = 10 * time.Second, 5 * time.Minute
	// quietFor is how long a worker tells nobody to stand by that took over from one that was silent: some requests still go to
	// that one, and the more others decide, the fewer.
	muteFor = 5 * time.Minute
	// handOverTime is how long a stop waits for another worker to decide.
	handOverTimeout = 2 * time.Second

	// subjectLead, a dot and the name of a store is where workers are asked, and answered below that.
	subjectLead        = "limits.internal.lead"
	subjectLeadAnswers = subjectLead + ".answers."
	// maxLeadBytes bounds a question and an answer.
	maxLeadBytes = 512
)

// LeadConfig configures that one worker of several decides.
type LeadConfig struct {
	// Store tells a store from all others.
	Store string
	// Able gives nil while decisions can be made with the store.
	Able func() error
	// Rest is told when this worker stands by, and when that is over: then it returns when the worker knows what was decided meanwhile, or
	// ctx ends.
	Rest func(ctx context.Context, resting bool)
}

// rank says who of two workers goes on: who decides for longer.
type rank struct {
	// Since is when it began to decide, in Unix nanoseconds; 0 for one that stands by for anybody.
	Since int64 `json:"since"`
	// Worker is its host, its process and a random part.
	Worker string `json:"worker"`
	// Leaving says that it decides until another one does.
	Leaving bool `json:"leaving,omitzero"`
}

func (r rank) valid() error {
	switch {
	case r.Worker == "":
		return errors.New("worker is missing")
	case r.Since < 0:
		return fmt.Errorf("since is %d", r.Since)
	}
	return nil
}

// before tells whether r goes on where both decide.
func (r rank) outranks(o rank) bool {
	if o.Since == 0 {
		o.Since = math.MaxInt64
	}
	return cmp.Or(cmp.Compare(r.Since, o.Since), cmp.Compare(r.Worker, o.Worker)) < 0
}

// lead knows whether a worker decides.
type lead struct {
	cfg  LeadConfig
	svc  *Service
	conn *nats.Conn
	log  *slog.Logger

	// deciding is read by others.
	deciding atomic.Bool
	// askedAt is when somebody asked who stands by then, in Unix nanoseconds.
	askedAt atomic.Int64
	// standing is what an answer tells of this worker, which the subscription's callback reads.
	own      atomic.Pointer[rank]
	ignored  logThrottle
	failures logThrottle

	// answers is the subscription to what inbox is sent; asked counts the questions.
	answerSub *nats.Subscription
	inbox     chan *nats.Msg
	questions int
	// hears is the subscription to questions; nil while there is none.
	questionSub *nats.Subscription
	// lookAt is when one that decides asks again.
	nextAsk time.Time
	// quiet is until when nobody is told to stand by.
	muteUntil time.Time
	// took is how long answers take, on the average; hold is until when this worker decides beside one that is slow, for
	// heldFor.
	answerTime   time.Duration
	overlapUntil time.Time
	overlapFor   time.Duration

	stop    context.CancelFunc
	done    sync.WaitGroup
	closing sync.Once
}

// startLead begins with a worker that decides.
func startLead(cfg LeadConfig, svc *Service) (*lead, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	l := &lead{cfg: cfg, svc: svc, conn: svc.cfg.Conn, log: svc.cfg.Logger, inbox: make(chan *nats.Msg, 256)}
	l.own.Store(&rank{Since: time.Now().UnixNano(), Worker: fmt.Sprintf("%.64s:%d:%s", host, os.Getpid(), rand.Text()[:8])})
	l.deciding.Store(true)
	if l.answerSub, err = l.conn.ChanSubscribe(subjectLeadAnswers+rand.Text()+".*", l.inbox); err != nil {
		return nil, fmt.Errorf("subscribe to answers of other workers: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.done.Go(func() { l.run(ctx) })
	return l, nil
}

func (l *lead) run(ctx context.Context) {
	for pause := time.Duration(0); sleep(ctx, pause) == nil; {
		if connected(l.conn) { // else nothing is known of others, and no request comes
			l.check(ctx)
		}
		if pause = standbyAskInterval; l.deciding.Load() {
			pause = checkInterval
		}
	}
}

// able tells whether this worker can decide: the server may have taken its subscriptions away.
func (l *lead) canDecide() bool {
	h := guardOf(l.conn)
	return l.cfg.Able() == nil && (h == nil || h.err() == nil)
}

// look finds out whether to decide.
func (l *lead) check(ctx context.Context) {
	deciding, able := l.deciding.Load(), l.canDecide()
	defer func() { l.svc.checkDrained(l.subs()) }()
	if deciding {
		l.setAnswering(able)
		if time.Now().Before(l.nextAsk) {
			return
		}
		l.nextAsk = time.Now().Add(decidingAskInterval)
	}
	own, every := *l.own.Load(), standbyAskInterval
	if !deciding || !able {
		own.Since = 0
	}
	if deciding {
		every = answerTimeout
	}
	other, took, err := l.ask(ctx, own, every)
	if err == nil && other.Leaving {
		err = fmt.Errorf("%s ends", other.Worker)
		l.setResting(ctx, false, handOverTimeout/2) // while that one decides
	}
	switch {
	case ctx.Err() != nil || errors.Is(err, nats.ErrDisconnected):
	case deciding && err == nil && (!able || l.withoutNetwork(took) < promptAnswer && time.Now().After(l.overlapUntil)):
		l.answerTime = took
		l.standBy(ctx, other)
	case !deciding && err != nil:
		if errors.Is(err, errNoAnswer) {
			l.muteUntil = time.Now().Add(muteFor)
		}
		l.takeOver(ctx, err)
	case !deciding && able && l.answersSlowly(took):
		if l.takeOver(ctx, fmt.Errorf("%s takes %s for an answer", other.Worker, l.answerTime.Round(time.Millisecond))) {
			l.startOverlap()
		}
	default: // what was not finished may be
		if errors.Is(err, nats.ErrNoResponders) { // nor anybody who hangs
			l.muteUntil = time.Time{}
		}
		l.failed("serve requests", l.svc.setDeciding(deciding))
	}
}

// slow tells whether the one that decides takes long for its answers, the last of which took so long. One that took very long is as bad as
// two: it may have been this process that stood still.
func (l *lead) answersSlowly(took time.Duration) bool {
	l.answerTime += (min(took, 2*slowAnswer) - l.answerTime) / 16
	return l.answerTime >= slowAnswer && l.withoutNetwork(l.answerTime) >= slowAnswer
}

// heldOn has this worker decide for a while beside one that is slow, each time for longer.
func (l *lead) startOverlap() {
	if time.Since(l.overlapUntil) > 2*maxOverlap {
		l.overlapFor = 0
	}
	l.overlapFor = min(max(minOverlap, 2*l.overlapFor), maxOverlap)
	l.overlapUntil = time.Now().Add(l.overlapFor)
}

// beyond is what of the time of an answer is not the way of the question and the answer, to the server and on; nothing, where that is not
// known.
func (l *lead) withoutNetwork(took time.Duration) time.Duration {
	if took < promptAnswer {
		return took
	}
	began := time.Now()
	if l.conn.FlushTimeout(answerTimeout) != nil {
		return 0
	}
	return took - 2*time.Since(began)
}

func (l *lead) takeOver(ctx context.Context, why error) bool {
	if err := l.svc.setDeciding(true); err != nil {
		l.failed("take requests to decide", err)
		return false
	}
	l.own.Store(&rank{Since: time.Now().UnixNano(), Worker: l.own.Load().Worker})
	l.deciding.Store(true)
	l.nextAsk = time.Now().Add(decidingAskInterval)
	l.setAnswering(l.canDecide())
	l.log.Info("decides from now on", "because", why)
	l.setResting(ctx, false, handOverTimeout)
	return true
}

func (l *lead) standBy(ctx context.Context, other rank) {
	l.setAnswering(false)
	if err := l.svc.setDeciding(false); err != nil {
		l.failed("leave requests to another worker", err)
		return
	}
	l.muteUntil = time.Time{}
	l.deciding.Store(false)
	l.log.Info("stands by from now on, while another worker decides", "worker", other.Worker)
	l.setResting(ctx, true, handOverTimeout)
}

func (l *lead) setResting(ctx context.Context, resting bool, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	l.cfg.Rest(ctx, resting)
}

// subject is where the workers of the store are asked that are in the cluster of this one: those of a distant one are left alone.
func (l *lead) subject() string {
	sum := sha256.Sum256([]byte(l.cfg.Store + "\n" + l.conn.ConnectedClusterName()))
	return subjectLead + "." + hex.EncodeToString(sum[:8])
}

// hear answers others from now on, unless it is to be quiet, or does no longer.
func (l *lead) setAnswering(on bool) {
	subject := l.subject()
	on = on && time.Now().After(l.muteUntil)
	if l.questionSub != nil && (!on || l.questionSub.Subject != subject) {
		_ = l.questionSub.Unsubscribe() // which fails when the connection is closed
		l.questionSub = nil
	}
	if !on || l.questionSub != nil {
		return
	}
	var err error
	if l.questionSub, err = l.conn.Subscribe(subject, l.answer); err != nil {
		l.failed("subscribe "+subject, err)
	}
}

// subs is how many subscriptions it has.
func (l *lead) subs() int {
	if l.questionSub == nil {
		return 1
	}
	return 2
}

// failed notes what is tried again with the next look; nil for nothing.
func (l *lead) failed(act string, err error) {
	if err == nil || !connected(l.conn) {
		return
	}
	if n := l.failures.due(); n > 0 {
		l.log.Error(act, "error", err, "times", n)
	}
}

// answer tells who asks that this worker decides, so that it may stand by, if it does not decide for longer.
func (l *lead) answer(m *nats.Msg) {
	other, err := decodeBroadcast(m.Data, maxLeadBytes, rank.valid)
	if err == nil && (!strings.HasPrefix(m.Reply, subjectLeadAnswers) || len(m.Reply) > natsconn.MaxReplySubject) {
		err = fmt.Errorf("nobody is answered to %q", short(m.Reply))
	}
	if err != nil {
		if n := l.ignored.due(); n > 0 {
			l.log.Warn("ignore who asks whether to stand by", "subject", m.Subject, "error", err, "messages", n)
		}
		return
	}
	own := *l.own.Load()
	if other.Worker == own.Worker || other.Leaving && own.Leaving {
		return
	}
	if own.outranks(other) && !other.Leaving {
		l.askedAt.Store(time.Now().UnixNano())
	}
	if data, err := json.Marshal(own); err == nil {
		_ = l.conn.Publish(m.Reply, data) // who is not answered decides, too
	}
}

// ask gives a worker that decides and goes on doing so beside one of the own rank, and how long its answer took. The error is
// [nats.ErrNoResponders] where nobody decides who can, and [errSilent] where nobody answered, as nobody does who decides for less long.
// A worker that ends takes the question with it that it was asked last, so it is asked again every so long.
func (l *lead) ask(ctx context.Context, own rank, every time.Duration) (other rank, took time.Duration, err error) {
	data, err := json.Marshal(own)
	if err != nil {
		return other, 0, err
	}
	subject, inbox, first := l.subject(), strings.TrimSuffix(l.answerSub.Subject, "*"), l.questions+1
	began := time.Now()
	for time.Since(began) < answerTimeout {
		if !connected(l.conn) {
			return other, 0, nats.ErrDisconnected // it would be kept, and asked later
		}
		l.questions++
		if err = l.conn.PublishRequest(subject, inbox+strconv.Itoa(l.questions), data); err != nil {
			return other, 0, err
		}
		other, err = l.awaitAnswer(ctx, own, first, every)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return other, time.Since(began), err
		}
	}
	return other, 0, errNoAnswer
}

// errSilent says that a question had no answer.
var errNoAnswer = fmt.Errorf("no answer from a worker within %s", answerTimeout)

// await gives the answer to a question from the first on that comes in time. One of who decides for less long tells that this one found
// nobody who hangs.
func (l *lead) awaitAnswer(ctx context.Context, own rank, first int, most time.Duration) (other rank, err error) {
	ctx, cancel := context.WithTimeout(ctx, most)
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
		case n < first: // it came too late
		case len(m.Data) == 0 && m.Header.Get("Status") == "503":
			return other, nats.ErrNoResponders
		default:
			other, err = decodeBroadcast(m.Data, maxLeadBytes, rank.valid)
			switch {
			case err != nil: // from somebody else
			case other.outranks(own):
				return other, nil
			default:
				l.muteUntil = time.Time{}
			}
		}
	}
}

// close hands over to a worker that stands by, and is to be followed by the end of the service.
func (l *lead) close(ctx context.Context) {
	l.closing.Do(func() {
		l.stop()
		l.done.Wait()
		if l.deciding.Load() && connected(l.conn) {
			l.handOver(ctx)
		}
		l.setAnswering(false)
		_ = l.answerSub.Unsubscribe() // which fails when the connection is closed
	})
}

// handOver returns when another worker decides, or after a while.
func (l *lead) handOver(ctx context.Context) {
	own, patience := *l.own.Load(), 3*standbyAskInterval
	switch recently := time.Now().Add(-decidingAskInterval); {
	case time.Unix(0, l.askedAt.Load()).After(recently):
		patience = handOverTimeout
	case time.Unix(0, own.Since).Before(recently): // so nobody stands by, who would have asked
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l.own.Store(&rank{Since: own.Since, Worker: own.Worker, Leaving: true})
	anybody := rank{Worker: own.Worker, Leaving: true}
	for {
		if _, _, err := l.ask(ctx, anybody, standbyAskInterval); err == nil || sleep(ctx, standbyAskInterval/5) != nil {
			return
		}
	}
}
