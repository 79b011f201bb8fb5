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
	// globalThrottleName names the counter of the throttle of all rules. No rule can have this name. Without a name the
	// counter would be named by its window, and lost when the window is written differently.
	globalThrottleName = "all rules"
	// maxClockSlip is by how many milliseconds the charge of an alert may end too early: the time of the limiter's decision
	// may be a little behind the store's clock.
	maxClockSlip = 1000
)

// throttle charges an alert to its user. If the charge is refused it returns the reason. The charge has an idempotency key,
// so that a retry is not charged twice.
//
// But a retry, maybe much later, is answered with the first charge, which counts from the first attempt and not from when
// the alert is sent. A user could be sent a full throttle of alerts just before such charges end, and as many just after.
// So a charge that ends too early is given back and made again, under an id derived from the id and the end of the old one.
// After a crash another process derives the same ids, and continues from where the first one stopped.
func (s *Service) throttle(ctx context.Context, a *Alert, now int64) (refused string, err error) {
	for id, before := a.EventID, int64(math.MinInt64); ; {
		reply, refused, err := s.charge(ctx, a, id)
		if err != nil || refused != "" {
			return refused, err
		}
		until := a.chargeValidUntil(reply)
		if until+maxClockSlip >= now || until <= before { // not later than before: the limiter's clock is behind
			return "", nil
		}
		if _, err := s.Limiter.Settle(ctx, id, 0); err != nil {
			return "", fmt.Errorf("refund an old charge of the throttle: %w", err)
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d", id, until))
		id, before = ruleSeparator+hex.EncodeToString(sum[:16]), until // no EventID begins with the separator
	}
}

// chargeValidUntil returns the latest time at which an alert may be sent on a charge, in Unix milliseconds. After it the
// charge lasts for less than a whole window of a throttle.
func (a *Alert) chargeValidUntil(r *limits.Reply) int64 {
	until := int64(math.MaxInt64)
	for i := range a.Throttles {
		reset := r.Reset
		if i < len(r.Limits) { // a reply about one limit has no Limits
			reset = r.Limits[i].Reset
		}
		until = min(until, reset-a.Throttles[i].window().Milliseconds())
	}
	return until
}

// charge asks the limiter to charge an alert under an id. It returns the reply, or the reason of a refusal.
func (s *Service) charge(ctx context.Context, a *Alert, id string) (_ *limits.Reply, refused string, err error) {
	r := limits.Request{ID: id}
	for _, t := range a.Throttles {
		r.Limits = append(r.Limits, limits.LimitSpec{Key: throttleKey(a.User), Name: cmp.Or(t.Name, globalThrottleName), Limit: t.Limit, Window: t.Window})
	}
	reply, err := s.Limiter.Consume(ctx, r)
	var bad *limits.Error
	switch {
	case errors.As(err, &bad) && !bad.Temporary():
		// A retry would not help; the alert is held for the digest.
		return nil, "the throttle could not be charged: " + bad.Code, nil
	case err != nil:
		return nil, "", fmt.Errorf("charge the throttle: %w", err)
	case reply.Degraded:
		return nil, "", errors.New("charge the throttle: the limiter answered without its store")
	case !reply.Allowed:
		return nil, "throttle", nil
	}
	return reply, "", nil
}

// throttleKey returns the key that is charged for a user. The user is hashed if the name is too long for a key, or would
// make the key of no user or of a hashed user.
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
