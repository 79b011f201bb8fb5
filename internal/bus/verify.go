package bus

import (
	"context"
	"maps"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
)

// verify answers limits.verify. Only the registry sees the key itself: it is in no log, error or
// answer.
func (s *Service) verify(m micro.Request) {
	received, ok := s.accept(m)
	if !ok {
		return
	}
	q, err := s.decodeVerify(m.Data())
	if err != nil {
		s.refuse(m, err)
		return
	}
	s.begin()
	// A cached key needs no goroutine.
	if k, code, ok := s.cfg.Keys.VerifyCached(q.APIKey); ok {
		s.verified(m.Reply(), q, received, &k, code)
		return
	}
	if !s.verifySlots.tryGo(func() { s.lookUp(m.Reply(), q, received) }) {
		s.refuse(m, engine.ErrOverloaded)
		s.end()
	}
}

// maxVerifies bounds the requests that wait for a look-up. There may be many, because requests with
// the same key share one.
const maxVerifies = 4096

// lookUp verifies a key that is not cached, and answers.
func (s *Service) lookUp(reply string, q *limits.VerifyRequest, received time.Time) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.storeTimeout)
	defer cancel()
	k, code, err := s.cfg.Keys.Verify(ctx, q.APIKey)
	if err != nil {
		s.noteStoreFailure(limits.SubjectVerify, err)
		s.publish(s.errorMsg(reply, err))
		s.end()
		return
	}
	s.noteStoreAnswer(limits.SubjectVerify)
	s.verified(reply, q, received, &k, code)
}

// verified answers a request whose key was verified, and ends the request.
func (s *Service) verified(reply string, q *limits.VerifyRequest, received time.Time, k *keys.Key, code keys.Code) {
	v := limits.VerifyReply{Valid: code == keys.Valid, Code: string(code)}
	if code != keys.Unknown {
		v.Key = &limits.KeyRef{ID: k.ID, Name: k.Name}
		v.User, v.Tier, v.Attributes = k.User, k.Tier, k.Attributes
	}
	body, err := json.Marshal(&v)
	if err != nil || code != keys.Valid {
		s.answerVerify(reply, body, err)
		return
	}
	s.decide(asKey(q, k), received, func(decision []byte, err error) {
		// The decision is JSON already, so it is spliced in.
		body = append(append(body[:len(body)-1], `,"decision":`...), decision...)
		s.answerVerify(reply, append(body, '}'), err)
	})
}

func (s *Service) answerVerify(reply string, body []byte, err error) {
	if err != nil {
		s.publish(s.errorMsg(reply, err))
	} else {
		s.answer(reply, body)
	}
	s.end()
}

// asKey is the consume that a valid key asks for. What the key says takes precedence over what the
// request says.
func asKey(q *limits.VerifyRequest, k *keys.Key) *limits.Request {
	attributes := make(map[string]string, len(q.Attributes)+len(k.Attributes)+3)
	maps.Copy(attributes, q.Attributes)
	maps.Copy(attributes, k.Attributes)
	attributes[attributeUser], attributes[attributeKey] = k.User, k.ID
	r := &limits.Request{Policy: q.Policy, Attributes: attributes, Tier: k.Tier, Cost: q.Cost, ID: q.ID}
	if k.Tier == "" {
		r.Tier = q.Tier
	} else {
		attributes[attributeTier] = k.Tier
	}
	return r
}

// decide decides a request that arrived at received as limits.consume would, and gives done the JSON of the answer.
func (s *Service) decide(request *limits.Request, received time.Time, done func(decision []byte, err error)) {
	r := &engine.Request{OnError: s.cfg.OnError}
	r.Done = func(d engine.Decision, err error) {
		if err != nil {
			done(nil, err)
			return
		}
		done(appendReply(nil, r.Verb, &d, r.Cost), nil)
	}
	if err := s.decoder.policyRequest(engine.Consume, request, r); err != nil {
		done(nil, err)
		return
	}
	r.Waited = time.Since(received)
	if err := s.cfg.Engine.Submit(r); err != nil {
		done(nil, err)
	}
}

const verifyFields = "apiKey, attributes, policy, tier, cost, id"

func (s *Service) decodeVerify(data []byte) (*limits.VerifyRequest, error) {
	p := s.decoder.acquireParser()
	defer s.decoder.parsers.Put(p)
	q, given := new(limits.VerifyRequest), false
	err := p.document(data, func(name []byte) (err error) {
		switch string(name) {
		case "apiKey":
			given = true
			q.APIKey, err = p.secret("apiKey")
		case "attributes", "policy", "tier", "cost", "id":
			err = p.topMember(name)
		default:
			err = p.unknown(name, verifyFields)
		}
		return err
	})
	if err == nil && !given {
		err = invalid("apiKey", "apiKey is missing; give the whole key")
	}
	q.Attributes, q.Policy, q.Tier, q.Cost, q.ID = p.attributes, p.policy, p.tier, p.cost, p.id
	return q, err
}
