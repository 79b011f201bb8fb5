package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Of the workers on one store, in one NATS cluster, one decides and the others stand by.
// Transactions of a database run one after another, so workers that share them have smaller batches
// and read what the others wrote. This is a matter of speed alone: any number of workers may decide
// at the same time, as they do for moments, and when in doubt a worker decides.
//
// A worker that decides, and can, answers on a subject that names the store. The others ask there
// all the time. If nobody is subscribed the server says so at once. Of two that decide, the one
// that has decided for longer goes on.
const (
	// standbyAskInterval is how often a worker that stands by asks, and decidingAskInterval how often
	// one that decides does. The latter checks every checkInterval whether it can decide.
	standbyAskInterval, decidingAskInterval, checkInterval = 50 * time.Millisecond, time.Second, 100 * time.Millisecond
	// If the deciding worker takes slowAnswer for an answer, on average and without the network, it
	// has too much to do, and another one decides beside it. That one stands by again once an answer
	// takes less than promptAnswer.
	slowAnswer, promptAnswer = 30 * time.Millisecond, 10 * time.Millisecond
	// It decides beside the slow one for at least minOverlap, and for twice as long each time, up to
	// maxOverlap.
	minOverlap, maxOverlap = 10 * time.Second, 5 * time.Minute
	// muteFor is how long a worker that took over from one that did not answer, or was started beside
	// it, is mute: it tells nobody to stand by. The one that hangs still gets its share of the
	// requests, which is the smaller the more workers decide.
	muteFor = 5 * time.Minute
	// handOverTimeout is how long a stop waits for another worker to decide. It also bounds a call of
	// Rest.
	handOverTimeout = 2 * time.Second
)

// LeadConfig configures the choice of the one worker that decides.
type LeadConfig struct {
	// Store identifies the store that is used now among all others.
	Store func() string
	// Able returns nil while the store can be used for decisions.
	Able func() error
	// Rest is called with true when this worker stands by, and with false when it is to decide
	// again. The latter returns when the worker knows what was decided meanwhile, or ctx ends.
	Rest func(ctx context.Context, resting bool)
	// times are answerTimes, unless a test sets them.
	times leadTimes
}

// leadTimes are how long the deciding worker may take for an answer: answerTimeout, slowAnswer and
// promptAnswer.
type leadTimes struct{ timeout, slow, prompt time.Duration }

var answerTimes = leadTimes{answerTimeout, slowAnswer, promptAnswer}

// lead decides whether this worker decides. One goroutine runs it.
type lead struct {
	cfg  LeadConfig
	svc  *Service
	conn *nats.Conn
	log  *slog.Logger

	// deciding is also read by other goroutines.
	deciding atomic.Bool
	// standbyAskedAt is when a worker last asked that has to stand by for this one; nil for never.
	standbyAskedAt atomic.Pointer[time.Time]
	// own is what this worker answers. The callback of questionSub reads it.
	own atomic.Pointer[rank]
	// decidesSince is the time of own by the monotonic clock, which goes on when the clock is set.
	decidesSince time.Time
	ignored      logThrottle
	failures     logThrottle

	// answerSub delivers answers to inbox. questions counts the questions.
	answerSub *nats.Subscription
	inbox     chan *nats.Msg
	questions int
	// questionSub is the subscription to questions; nil while this worker does not answer them.
	questionSub *nats.Subscription
	// nextAsk is when this worker asks again while it decides.
	nextAsk time.Time
	// muteUntil is until when this worker does not answer questions.
	muteUntil time.Time
	// answerTime is the moving average of how long answers take, without the network.
	answerTime time.Duration
	// roundTrips to the server are those that were measured last, the next one at nextMeasure.
	roundTrips  []time.Duration
	nextMeasure time.Time
	// overlapUntil is until when this worker decides beside a slow one, and overlapFor how long the
	// last such time lasts.
	overlapUntil time.Time
	overlapFor   time.Duration

	stop    context.CancelFunc
	done    sync.WaitGroup
	closing sync.Once
}

// startLead begins as a worker that decides.
func startLead(cfg LeadConfig, svc *Service) (*lead, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	cfg.times = cmp.Or(cfg.times, answerTimes)
	l := &lead{cfg: cfg, svc: svc, conn: svc.cfg.Conn, log: svc.cfg.Logger, inbox: make(chan *nats.Msg, 256)}
	l.decideAs(fmt.Sprintf("%.64s:%d:%s", host, os.Getpid(), rand.Text()[:8]))
	if l.answerSub, err = l.conn.ChanSubscribe(subjectLeadAnswers+rand.Text()+".*", l.inbox); err != nil {
		return nil, fmt.Errorf("subscribe to answers of other workers: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.done.Go(func() { l.run(ctx) })
	return l, nil
}

// decideAs begins a time of deciding.
func (l *lead) decideAs(worker string) {
	l.decidesSince = time.Now()
	own := rank{Since: l.decidesSince.UnixNano(), Worker: worker}
	if before := l.own.Load(); before != nil {
		own.RoundTrip = before.RoundTrip
	}
	l.own.Store(&own)
	l.deciding.Store(true)
}

func (l *lead) run(ctx context.Context) {
	for pause := time.Duration(0); sleep(ctx, pause) == nil; {
		if connected(l.conn) { // else nothing can be learned, and no request comes
			l.check(ctx)
		}
		if pause = standbyAskInterval; l.deciding.Load() {
			pause = checkInterval
		}
	}
}

// canDecide reports whether this worker can decide: the store must work, and the server must not
// have taken subscriptions away.
func (l *lead) canDecide() bool {
	guard := guardOf(l.conn)
	return l.cfg.Able() == nil && (guard == nil || guard.err() == nil)
}

// check finds out whether to decide, and changes that.
func (l *lead) check(ctx context.Context) {
	l.measureDistance()
	if l.deciding.Load() {
		l.checkDeciding(ctx)
	} else {
		l.checkStandby(ctx)
	}
	l.svc.checkDrained(l.subs())
}

// checkDeciding looks for another worker for which this one may stand by. It asks before it answers for the first time: whoever
// is subscribed then, and does not answer, hangs. Later the question reaches this worker itself.
func (l *lead) checkDeciding(ctx context.Context) {
	able, first := l.canDecide(), l.questions == 0
	if !first {
		l.setAnswering(able)
	}
	if time.Now().Before(l.nextAsk) {
		return
	}
	l.nextAsk = time.Now().Add(decidingAskInterval)
	own := *l.own.Load()
	if !able {
		own.Since = 0
	}
	other, took, err := l.askStaying(ctx, own, l.answerWait())
	if err == nil {
		took = l.withoutNetwork(took, other)
	}
	switch {
	case ctx.Err() != nil || errors.Is(err, nats.ErrDisconnected):
		return
	case err == nil && (!able || took < l.cfg.times.prompt && time.Now().After(l.overlapUntil)):
		l.answerTime = took
		l.standBy(ctx, other)
		return
	case errors.Is(err, nats.ErrNoResponders): // so no worker hangs either
		l.muteUntil = time.Time{}
	case first && errors.Is(err, errNoAnswer):
		l.muteUntil = time.Now().Add(muteFor)
	}
	l.setAnswering(able)
	l.logRetry("cannot finish taking over, will retry", l.svc.setDeciding(true)) // finishes what failed before
}

// checkStandby takes over if no other worker decides, or that one is slow.
func (l *lead) checkStandby(ctx context.Context) {
	able := l.canDecide()
	own := *l.own.Load()
	own.Since = 0
	other, took, err := l.askStaying(ctx, own, standbyAskInterval)
	switch {
	case ctx.Err() != nil || errors.Is(err, nats.ErrDisconnected):
	case err != nil:
		if errors.Is(err, errNoAnswer) {
			l.muteUntil = time.Now().Add(muteFor)
		}
		l.takeOver(ctx, err)
	case able && l.answersSlowly(l.withoutNetwork(took, other)):
		if l.takeOver(ctx, fmt.Errorf("%s takes %s to answer", other.Worker, l.answerTime.Round(time.Millisecond))) {
			l.startOverlap()
		}
	default:
		l.logRetry("cannot finish standing by, will retry", l.svc.setDeciding(false)) // finishes what failed before
	}
}

// askStaying is ask, with an error if the worker that answers is stopping. That one still decides, so
// this worker gets ready to decide meanwhile.
func (l *lead) askStaying(ctx context.Context, own rank, resend time.Duration) (other rank, took time.Duration, err error) {
	other, took, err = l.ask(ctx, own, resend)
	if err == nil && other.Leaving {
		err = fmt.Errorf("%s is stopping", other.Worker)
		l.setResting(ctx, false, handOverTimeout/2)
	}
	return other, took, err
}

// answersSlowly adds to the average how long the deciding worker took for an answer, without the
// network, and reports whether it is slow. A very long time counts as no more than twice slowAnswer:
// it may have been this process that stood still.
func (l *lead) answersSlowly(took time.Duration) bool {
	slow := l.cfg.times.slow
	l.answerTime += (min(took, 2*slow) - l.answerTime) / 16
	return l.answerTime >= slow
}

// startOverlap has this worker decide beside a slow one for a while, each time for longer.
func (l *lead) startOverlap() {
	if time.Since(l.overlapUntil) > 2*maxOverlap {
		l.overlapFor = 0
	}
	l.overlapFor = min(max(minOverlap, 2*l.overlapFor), maxOverlap)
	l.overlapUntil = time.Now().Add(l.overlapFor)
}

// takeOver makes this worker decide, and reports whether it does.
func (l *lead) takeOver(ctx context.Context, why error) bool {
	if err := l.svc.setDeciding(true); err != nil {
		l.logRetry("cannot take over, will retry", err)
		return false
	}
	l.decideAs(l.own.Load().Worker)
	l.nextAsk = time.Now().Add(decidingAskInterval)
	l.setAnswering(l.canDecide())
	l.log.Info("this worker now decides", "because", why)
	l.setResting(ctx, false, handOverTimeout)
	return true
}

// standBy makes this worker stand by for another.
func (l *lead) standBy(ctx context.Context, other rank) {
	l.setAnswering(false)
	if err := l.svc.setDeciding(false); err != nil {
		l.logRetry("cannot stand by, will retry", err)
		return
	}
	l.muteUntil = time.Time{}
	l.deciding.Store(false)
	l.log.Info("this worker now stands by; another one decides", "worker", other.Worker)
	l.setResting(ctx, true, handOverTimeout)
}

// setResting calls Rest with a context that ends after timeout.
func (l *lead) setResting(ctx context.Context, resting bool, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l.cfg.Rest(ctx, resting)
}

// subs is how many subscriptions lead has.
func (l *lead) subs() int {
	if l.questionSub == nil {
		return 1
	}
	return 2
}

// logRetry logs an error, if there is one. The next check tries again.
func (l *lead) logRetry(act string, err error) {
	if err == nil || !connected(l.conn) {
		return
	}
	if n := l.failures.due(); n > 0 {
		l.log.Error(act, "error", err, "times", n)
	}
}

// close hands over to a worker that stands by. The service must end after it.
func (l *lead) close(ctx context.Context) {
	l.closing.Do(func() {
		l.stop()
		l.done.Wait()
		if l.deciding.Load() && connected(l.conn) {
			l.handOver(ctx)
		}
		l.setAnswering(false)
		_ = l.answerSub.Unsubscribe() // it fails when the connection is closed
	})
}

// handOver returns when another worker decides, or after a while.
func (l *lead) handOver(ctx context.Context) {
	patience := 3 * standbyAskInterval
	switch asked := l.standbyAskedAt.Load(); {
	case asked != nil && time.Since(*asked) < decidingAskInterval:
		patience = handOverTimeout
	case time.Since(l.decidesSince) > decidingAskInterval: // nobody stands by, or it would have asked
		return
	}
	own := *l.own.Load()
	own.Leaving = true
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l.own.Store(&own)
	anybody := rank{Worker: own.Worker, Leaving: true}
	for {
		if _, _, err := l.ask(ctx, anybody, standbyAskInterval); err == nil || sleep(ctx, standbyAskInterval/5) != nil {
			return
		}
	}
}
