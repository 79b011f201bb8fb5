package bus

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
)

// The endpoints that read or remove counters: status, admin.list, admin.reset. They are rare, so
// their answers are encoded from the wire types by reflection.

func (s *Service) status(ctx context.Context, data []byte) (any, error) {
	key, request, err := s.decodeStatus(data)
	if err != nil {
		return nil, err
	}
	var counters []engine.Counter
	if key == "" {
		counters, err = s.cfg.Engine.StatusOf(ctx, request.Limits)
	} else {
		counters, err = s.cfg.Engine.Status(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	return limits.Status{Key: key, Counters: wireCounters(counters, key == "")}, nil
}

// decodeStatus returns the key, or else the check of the policies.
func (s *Service) decodeStatus(data []byte) (key string, request engine.Request, err error) {
	p := s.decoder.acquireParser()
	defer s.decoder.parsers.Put(p)
	err = p.document(data, func(name []byte) (err error) {
		switch string(name) {
		case "key":
			key, err = p.text("key", limits.MaxKeyBytes)
		case "policy", "attributes", "tier":
			err = p.topMember(name)
		default:
			err = p.unknown(name, "key, policy, attributes, tier")
		}
		return err
	})
	switch {
	case err != nil:
	case key == "" && p.given == 0:
		err = invalid("key", "key is missing; give key, or policy or attributes")
	case key != "" && p.given != 0:
		err = mixedForms("key", "key asks for all counters of a key, and policy and attributes for the limits of a request; give one of them")
	case key == "":
		err = p.buildRequest(engine.Check, &request)
	}
	return key, request, err
}

func (s *Service) list(ctx context.Context, data []byte) (any, error) {
	req, err := decodeList(data)
	if err != nil {
		return nil, err
	}
	page, more, err := s.cfg.Engine.List(ctx, req.Prefix, parseCursor(req.After), req.Max)
	if err != nil {
		return nil, err
	}
	reply := limits.List{Counters: wireCounters(page, true)}
	if more {
		reply.Next = cursor(page[len(page)-1].CounterID)
	}
	return reply, nil
}

// defaultListPage is how many counters a page has by default.
const defaultListPage = 100

func decodeList(data []byte) (limits.ListRequest, error) {
	req := limits.ListRequest{Max: defaultListPage}
	err := readFields(data,
		text("prefix", &req.Prefix, 0, limits.MaxKeyBytes),
		parsed("after", func(after string) error {
			req.After = after
			key, counter, _ := strings.Cut(after, cursorCut)
			_, bad := policy.Unprintable(key + strings.Replace(counter, engine.PolicyName("", ""), "", 1))
			if bad || len(key) > limits.MaxKeyBytes || len(counter) > 2*limits.MaxNameBytes+1 {
				return invalid("after", "after %s is not a valid cursor; want next from the previous page, or a key", quoteText(after))
			}
			return nil
		}),
		number("max", &req.Max, 1, limits.MaxListPage))
	return req, err
}

func (s *Service) reset(ctx context.Context, data []byte) (any, error) {
	req, err := decodeReset(data)
	if err != nil {
		return nil, err
	}
	if req.Key != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.storeTimeout)
		defer cancel()
	}
	n, err := s.cfg.Engine.Reset(ctx, engine.Selection{Key: req.Key, Prefix: req.Prefix}, req.DryRun)
	switch {
	case err == nil:
		return limits.ResetReply{Reset: n}, nil
	case req.DryRun || n == 0:
		return nil, err
	}
	// A store resets many counters in several transactions, and earlier ones stand.
	we := *wireError(err, s.cfg.Advice)
	we.Message += fmt.Sprintf("; %d counters are reset already, and the same reset goes on with the rest", n)
	return nil, fmt.Errorf("%w: %w", err, &we)
}

func decodeReset(data []byte) (limits.ResetRequest, error) {
	var req limits.ResetRequest
	prefixed, prefix := false, text("prefix", &req.Prefix, 0, limits.MaxKeyBytes)
	err := readFields(data,
		text("key", &req.Key, 1, limits.MaxKeyBytes),
		field{prefix.name, func(r *reader) error {
			prefixed = true
			return prefix.read(r)
		}},
		boolean("all", &req.All),
		boolean("dryRun", &req.DryRun))
	switch {
	case err != nil:
		return req, err
	case req.Key != "" && (prefixed || req.All):
		return req, mixedForms("key", "key selects one key, prefix and all select many; give one of them")
	case req.Prefix != "" && req.All:
		return req, mixedForms("all", "all selects every key and prefix only some; give one of them")
	case req.Key == "" && !prefixed && !req.All:
		return req, invalid("key", `key is missing; give key, or prefix, or "all":true for every key`)
	case req.Key == "" && req.Prefix == "" && !req.All:
		return req, invalid("prefix", `an empty prefix selects every key; confirm with "all":true`)
	}
	return req, nil
}

func wireCounters(counters []engine.Counter, keyed bool) []limits.Counter {
	return wireAll(counters, func(c *engine.Counter) limits.Counter {
		w := limits.Counter{
			Name: c.Label(), Policy: c.Policy, Algorithm: c.Algorithm, Limit: c.Limit, Window: c.Window, Burst: c.Burst,
			Used: c.Used, Remaining: c.Remaining, Reset: c.ResetAt,
		}
		if keyed {
			w.Key = c.Key
		}
		return w
	})
}

const (
	// cursorCut separates key and name in the next of a page: neither can contain it.
	cursorCut = "\n"
	// afterNames sorts after every name: names have only printable runes, and this is the last
	// rune.
	afterNames = "\U0010FFFF"
)

func cursor(id engine.CounterID) string { return id.Key + cursorCut + id.Name }

// parseCursor parses the next of a page. A plain key stands for the last of its counters.
func parseCursor(after string) engine.CounterID {
	if after == "" {
		return engine.CounterID{}
	}
	key, name, ok := strings.Cut(after, cursorCut)
	if !ok {
		name = afterNames
	}
	return engine.CounterID{Key: key, Name: name}
}
