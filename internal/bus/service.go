package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/natsconn"
	"github.com/seed503877ad/limits/internal/outage"
	"github.com/seed503877ad/limits/internal/overrides"
)

// Decider answers requests; *[engine.Engine] is one.
type Decider interface {
	Submit(r *engine.Request) error
	Status(ctx context.Context, key string) ([]engine.Counter, error)
	List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.Counter, bool, error)
	Reset(ctx context.Context, sel engine.Selection, dryRun bool) (int64, error)
	Settle(ctx context.Context, id string, cost int64) (engine.Decision, error)
}

// ServiceConfig configures a [Service].
type ServiceConfig struct {
	// Conn is a connection for this service alone: Stop knows that every request was taken by the connection
	// having no subscription left. Required.
	Conn *nats.Conn
	// Engine decides. Without one only what Jobs and Alerts answer is served, as an alerter does.
	Engine Decider
	// Version is the program's version; a text that is no semantic version is told as 0.0.0.
	Version string
	// SchemaBase is the URL of the folder of the schemas, such as "http://127.0.0.1:8080/schemas".
	SchemaBase string
	// WarningThreshold is the part of a limit at or below which a warning is raised, 0 to 1; below 0 raises none.
	WarningThreshold float64
	// OnError is what to answer when the store fails.
	OnError engine.OnError
	// Advice says in words for whoever asks what is wrong with the store that gave an error, and what helps; empty when the error does
	// not tell. Nil says nothing.
	Advice func(error) string
	// Policies answer requests that name a policy or give attributes; nil for none. *[policy.Keeper] is one.
	Policies Policies
	// UsageLog takes the request log, and Usage answers admin.top and admin.usage. Without one its subjects are not
	// served.
	UsageLog UsageLog
	Usage    UsageReader
	// Keys answers verify and admin.keys, Overrides admin.overrides and what the policies ask; without them their
	// endpoints are not there.
	Keys      *keys.Registry
	Overrides *overrides.Table
	// Jobs answers admin.jobs; without it its endpoints are not there.
	Jobs Jobs
	// Alerts answers admin.alerts; without it its endpoints are not there.
	Alerts Alerts
	// Lead has one worker decide of those on one store; without it all do.
	Lead *LeadConfig
	// Logger is required.
	Logger *slog.Logger
}

func (c *ServiceConfig) defaults() error {
	switch {
	case c.Conn == nil:
		return errors.New("service: Conn is missing")
	case c.Engine == nil && c.Jobs == nil && c.Alerts == nil:
		return errors.New("service: Engine is missing, and so are Jobs and Alerts: there is nothing to serve")
	case c.Logger == nil:
		return errors.New("service: Logger is missing")
	}
	c.SchemaBase = strings.TrimRight(c.SchemaBase, "/")
	return nil
}

// Service is the micro service "limits" on one connection.
type Service struct {
	cfg ServiceConfig
	// micro answers. Where lead changes who decides, next takes its place when the server is known to have its subscriptions.
	current, next *microService
	lead          *lead
	// others is how many subscriptions of the connection are not those of micro, next and lead, and verbs how many a micro service has beside
	// its endpoints. drains is since when the subscriptions of those that were replaced are ending, the zero time for none, and reconnects
	// how often the connection was made anew before.
	otherSubs, controlSubs int
	drainingSince          time.Time
	reconnectsBefore       uint64

	decoder *decoder
	calls   sync.Pool
	// reads and statuses have a value for each of them that runs, verifies for each request that waits for a look-up of its
	// API key, and settles for each settle.
	readSlots, statusSlots   chan struct{}
	verifySlots, settleSlots chan struct{}
	writeSlots               chan struct{} // one for each answer that is being written beside the reading
	now                      func() time.Time
	// ctx ends the reads of a service whose Stop ran out of time.
	ctx    context.Context
	cancel context.CancelFunc

	// unanswered counts the requests that wait for their answer, ignored those that cannot have one, and lost the answers that
	// the connection would not take.
	pending, unanswerable, lostAnswers atomic.Int64
	// failures has an [outage.Log] for each subject that the store has failed.
	failures sync.Map
	stopOnce sync.Once
	stopped  chan struct{}
	stopErr  error
}

// NewService starts to answer.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	d, err := newDecoder(cfg.WarningThreshold)
	if err != nil {
		return nil, err
	}
	d.policies = cfg.Policies
	asked := new(logThrottle)
	d.onNoPolicies = func() {
		if n := asked.due(); n > 0 {
			cfg.Logger.Warn("requests ask for the policies that match, and pass without a limit: this limiter has none; start it with --policies FILE", "requests", n)
		}
	}
	if cfg.Overrides != nil {
		d.overrides = cfg.Overrides
	}
	s := &Service{cfg: cfg, decoder: d, readSlots: make(chan struct{}, maxReads), statusSlots: make(chan struct{}, maxStatuses),
		verifySlots: make(chan struct{}, maxVerifies), settleSlots: make(chan struct{}, maxSettles), writeSlots: make(chan struct{}, maxWrites), now: time.Now, stopped: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.calls.New = s.newCall
	s.otherSubs = cfg.Conn.NumSubscriptions()
	if s.current, err = s.startMicro(true); err != nil {
		return nil, err
	}
	s.controlSubs = cfg.Conn.NumSubscriptions() - s.otherSubs - s.current.endpoints
	if err := confirmSubscriptions(cfg.Conn); err != nil {
		_ = s.current.Stop()
		return nil, fmt.Errorf("subscribe endpoints: %w", err)
	}
	s.installInline()
	if h := guardOf(cfg.Conn); h != nil {
		var subjects []string
		for _, e := range s.endpoints(true) {
			subjects = append(subjects, e.subject)
		}
		h.watch(subjects)
	}
	if cfg.Lead != nil {
		if s.lead, err = startLead(*cfg.Lead, s); err != nil {
			s.removeInline()
			_ = s.current.Stop()
			return nil, err
		}
	}
	return s, nil
}

// Deciding tells whether this worker decides, or stands by.
func (s *Service) Deciding() bool { return s.lead == nil || s.lead.deciding.Load() }

// flushTime bounds how long the server may take to tell that it has all subscriptions, or all answers.
const confirmTimeout = 5 * time.Second

// subscribed waits until the server has all subscriptions, since only then is a service ready. What it refuses comes before its
// answer, as an error of the connection alone.
func confirmSubscriptions(nc *nats.Conn) error {
	if err := nc.FlushTimeout(confirmTimeout); err != nil {
		return err
	}
	switch err := nc.LastError(); {
	case errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "Subscription"):
		return fmt.Errorf("%w; grant it to the NATS user: docs/operations.md, Permissions in NATS", err)
	case errors.Is(err, nats.ErrMaxSubscriptionsExceeded):
		return fmt.Errorf("%w; a worker has about 40, and 60 for moments: raise max_subscriptions of the server, or of the account or user", err)
	}
	return nil
}

// call is a request on its way through the engine. Calls are used again, with their only limit and the room for
// the answer: a request belongs to the engine no longer than until its Done is called.
type call struct {
	engine.Request
	oneLimit    [1]engine.Limit
	reply, body []byte
	// conn is what the request was read from where that was not nats.go.
	conn *natsconn.Conn
	svc  *Service
	// answer is done as a value, which is made once.
	answer func(d engine.Decision, err error)
}

func (s *Service) newCall() any {
	c := &call{svc: s, body: make([]byte, 0, 512)}
	c.answer = c.done
	return c
}

// decides is the handler of a verb. Callbacks of an endpoint run one at a time, so it decodes, hands the request
// to the engine, and is done; the engine's call of Done sends the answer.
func (s *Service) handleDecision(m micro.Request) {
	if !answerable(m.Reply()) {
		s.ignore(m)
		return
	}
	c := s.call(nil, []byte(m.Reply()))
	err := c.decode(engineVerbs[m.Subject()], m.Data(), nil)
	if err == nil {
		err = c.submit()
	}
	if err != nil {
		s.refuse(m, err)
	}
}

// call gives a call for a request that came from conn, or over nats.go, and is answered to reply.
func (s *Service) call(conn *natsconn.Conn, reply []byte) *call {
	c := s.calls.Get().(*call)
	c.conn, c.reply = conn, append(c.reply[:0], reply...)
	return c
}

// decode reads the request; at is as for [decoder.request]. When it fails the call is over.
func (c *call) decode(verb engine.Verb, data []byte, at *cacheLookup) error {
	c.Request = engine.Request{Limits: c.oneLimit[:0], OnError: c.svc.cfg.OnError, Done: c.answer}
	if c.conn != nil {
		c.Received = c.conn.ReceivedAt()
	}
	err := c.svc.decoder.decode(verb, data, at, &c.Request)
	if err != nil {
		c.release()
	}
	return err
}

// submit hands the request to the engine. When it fails the call is over, and not answered.
func (c *call) submit() error {
	s := c.svc
	s.begin()
	err := s.cfg.Engine.Submit(&c.Request)
	if err != nil {
		c.release()
		s.end()
	}
	return err
}

// over gives the call back, to be used again.
func (c *call) release() {
	c.conn = nil
	c.svc.calls.Put(c)
}

// done answers the call. It publishes on the connection instead of through the micro.Request, whose error state
// the endpoint reads, without a lock, when the handler has returned.
func (c *call) done(d engine.Decision, err error) {
	s := c.svc
	if err != nil {
		s.publish(s.errorMsg(string(c.reply), err))
	} else {
		c.body = appendReply(c.body[:0], c.Verb, &d, c.Cost)
		if !c.answerInline() {
			c.answerViaNATS()
		}
	}
	c.release()
	s.end()
}

const (
	// maxReads is how many of admin's requests that read the store may run at a time, and maxStatuses how many of status; more
	// are answered 503.
	maxReads    = 32
	maxStatuses = 1024
	// readTimeout is how long a request that reads the store may take, as a decision: callers should be told that the
	// store does not answer before they give up.
	readTimeout = limits.DefaultTimeout * 3 / 4
	// longTimeout bounds what goes through as many rows as there are. The client verbs wait longer for those.
	scanTimeout = 5 * time.Second
)

// answers is the handler of an endpoint that reads the store.
func (s *Service) readHandler(answer func(ctx context.Context, data []byte) (any, error)) micro.HandlerFunc {
	return s.asyncHandler(s.readSlots, readTimeout, answer)
}

// works is the handler of an endpoint that may have to go through many rows.
func (s *Service) scanHandler(answer func(ctx context.Context, data []byte) (any, error)) micro.HandlerFunc {
	return s.asyncHandler(s.readSlots, scanTimeout, answer)
}

// beside is a handler that runs beside the callback, as long as there is room.
func (s *Service) asyncHandler(slots chan struct{}, timeout time.Duration, answer func(ctx context.Context, data []byte) (any, error)) micro.HandlerFunc {
	return func(m micro.Request) {
		if !answerable(m.Reply()) {
			s.ignore(m)
			return
		}
		s.begin()
		if !tryGo(slots, func() {
			defer s.end()
			ctx, cancel := context.WithTimeout(s.ctx, timeout)
			defer cancel()
			s.read(ctx, m.Subject(), m.Reply(), m.Data(), answer)
		}) {
			s.refuse(m, engine.ErrOverloaded)
			s.end()
		}
	}
}

// aside has f run on a goroutine of its own, if there is room.
func tryGo(slots chan struct{}, f func()) bool {
	select {
	case slots <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-slots }()
		f()
	}()
	return true
}

func (s *Service) read(ctx context.Context, subject, reply string, data []byte,
	answer func(ctx context.Context, data []byte) (any, error)) {
	v, err := answer(ctx, data)
	var body []byte
	if err == nil {
		body, err = json.Marshal(v)
	}
	if err != nil {
		if e := wireError(err, nil); e.Status == 503 {
			s.noteStoreFailure(subject, err)
		}
		s.publish(s.errorMsg(reply, err))
		return
	}
	s.noteStoreAnswer(subject)
	s.answer(reply, body)
}

// answer publishes an answer, which is copied, or that it is too large to be.
func (s *Service) answer(reply string, body []byte) {
	err := s.cfg.Conn.Publish(reply, body)
	if errors.Is(err, nats.ErrMaxPayload) {
		err = s.cfg.Conn.PublishMsg(s.errorMsg(reply, &limits.Error{Status: 413, Code: limits.CodeTooLarge, Message: fmt.Sprintf(
			"the answer has %d bytes, and NATS takes %d; ask for fewer at a time with max, or for fewer limits, whose decision stands",
			len(body), s.cfg.Conn.MaxPayload())}))
	}
	s.sent(err)
}

// unavailable notes a request that the store failed, and available one that it did not: the log tells when an endpoint begins to
// fail, and when it is over.
func (s *Service) noteStoreFailure(subject string, err error) {
	log, known := s.failures.Load(subject)
	if !known {
		log, _ = s.failures.LoadOrStore(subject, outage.New(s.cfg.Logger, slog.LevelWarn, "the store fails requests", "the store answers "+subject+" again"))
	}
	log.(*outage.Log).Tried(err, "endpoint", subject)
}

func (s *Service) noteStoreAnswer(subject string) {
	if log, failed := s.failures.Load(subject); failed {
		log.(*outage.Log).Tried(nil)
	}
}

// refuse answers an error while the handler runs, so that the endpoint's statistics count it.
func (s *Service) refuse(m micro.Request, err error) {
	msg := s.errorMsg(m.Reply(), err)
	s.sent(m.Error(msg.Header.Get(micro.ErrorCodeHeader), msg.Header.Get(micro.ErrorHeader), msg.Data))
}

func (s *Service) publish(m *nats.Msg) { s.sent(s.cfg.Conn.PublishMsg(m)) }

// sent notes an answer that the connection would not take; the first is logged, and then every 1000th.
func (s *Service) sent(err error) {
	if err == nil {
		return
	}
	if n := s.lostAnswers.Add(1); n%1000 == 1 {
		s.cfg.Logger.Warn("publish reply", "error", err, "lost", n)
	}
}

// ignore drops a request that cannot be answered; the first is logged, and then every 1000th.
func (s *Service) ignore(m micro.Request) {
	if n := s.unanswerable.Add(1); n%1000 == 1 {
		s.cfg.Logger.Warn("a request has no reply subject, or one that is not answered", "subject", m.Subject(), "reply", m.Reply(), "ignored", n)
	}
}

// answerable tells whether an answer may go to a reply subject. A client chooses it, and the answer is published with
// the rights of this service: it must not reach the server's own subjects ($JS.API, $SYS) or those of events. One that is too long comes
// over a websocket alone, which cannot be read below nats.go.
func answerable[T string | []byte](reply T) bool {
	begins := func(with string) bool { return len(reply) >= len(with) && string(reply[:len(with)]) == with }
	return len(reply) > 0 && len(reply) <= natsconn.MaxReplySubject && !begins("$") && !begins("limits.") && !begins("alerts.")
}

func (s *Service) begin() { s.pending.Add(1) }

func (s *Service) end() { s.pending.Add(-1) }

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var semverPattern = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// semver gives the version as the micro specification wants it.
func semver(version string) string {
	if v := strings.TrimPrefix(version, "v"); semverPattern.MatchString(v) {
		return v
	}
	return "0.0.0"
}
