package alerts

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/seed503877ad/limits"
)

// Limiter decides whether one more alert may be sent; *[limits.Client] is one.
type Limiter interface {
	Consume(ctx context.Context, r limits.Request) (*limits.Reply, error)
	Settle(ctx context.Context, id string, cost int64) (*limits.Reply, error)
}

const (
	// throttleOfAll names the counter of the throttle of all rules, as no rule can be called. Without a name it would be that of
	// its window's text, and another text would begin anew.
	throttleOfAll = "all rules"
	// mostSlip is by how many milliseconds a charge may count too short for its alert: the time at which a limiter decides may be
	// a little behind the store's clock.
	mostSlip = 1000
)

// throttle charges an alert to its user. It gives why not, when it is refused. The id makes a second try the same as the first.
//
// That would count an alert from its first try, and not from when it is told: a user could be told of a throttle's worth just
// before those charges end, and of as many behind that. So a charge that ends too early is given back, and made anew under an id
// that follows from it. Who tries again after a crash goes the same way, as far as the first came.
func (s *Service) throttle(ctx context.Context, a *Alert, now int64) (refused string, err error) {
	for id, before := a.EventID, int64(math.MinInt64); ; {
		reply, refused, err := s.charge(ctx, a, id)
		if err != nil || refused != "" {
			return refused, err
		}
		until := a.tellBy(reply)
		if until+mostSlip >= now || until <= before { // the latter where the limiter's clock is behind: it charges no later
			return "", nil
		}
		if _, err := s.Limiter.Settle(ctx, id, 0); err != nil {
			return "", fmt.Errorf("give back an old charge of the throttle: %w", err)
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d", id, until))
		id, before = ruleCut+hex.EncodeToString(sum[:16]), until // no alert's id begins so
	}
}

// tellBy is until when an alert may be told on a charge: from then on that counts for no whole window any more.
func (a *Alert) tellBy(r *limits.Reply) int64 {
	until := int64(math.MaxInt64)
	for i := range a.Throttles {
		reset := r.Reset
		if i < len(r.Limits) { // there are several
			reset = r.Limits[i].Reset
		}
		until = min(until, reset-a.Throttles[i].window().Milliseconds())
	}
	return until
}

// charge asks the limiter to charge an alert under an id, and gives its answer, or why it is refused.
func (s *Service) charge(ctx context.Context, a *Alert, id string) (_ *limits.Reply, refused string, err error) {
	r := limits.Request{ID: id}
	for _, t := range a.Throttles {
		r.Limits = append(r.Limits, limits.LimitSpec{Key: throttleKey(a.User), Name: cmp.Or(t.Name, throttleOfAll), Limit: t.Limit, Window: t.Window})
	}
	reply, err := s.Limiter.Consume(ctx, r)
	var bad *limits.Error
	switch {
	case errors.As(err, &bad) && !bad.Temporary():
		// Trying again would not help; the digest tells of it.
		return nil, "the throttle could not be charged: " + bad.Code, nil
	case err != nil:
		return nil, "", fmt.Errorf("charge the throttle: %w", err)
	case reply.Degraded:
		return nil, "", errors.New("charge the throttle: the limiter answers without its store")
	case !reply.Allowed:
		return nil, "throttle", nil
	}
	return reply, "", nil
}

// throttleKey is the key of a user, of whom only the hash is in it where the name is too long for a key, or would be a key of
// others.
func throttleKey(user string) string {
	switch {
	case user == "":
		return throttlePrefix + "none"
	case len(throttlePrefix)+len(user) > limits.MaxKeyBytes, user == "none", strings.HasPrefix(user, "sha256:"):
		sum := sha256.Sum256([]byte(user))
		return throttlePrefix + "sha256:" + hex.EncodeToString(sum[:])
	}
	return throttlePrefix + user
}
