package bus

import (
	"context"
	"crypto/sha256"
	"maps"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
)

// verify is the endpoint of limits.verify. Only the registry sees the key itself: it is in no log, error or answer.
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
	c := s.acquireCall(nil, []byte(m.Reply()))
	c.Waited = time.Since(received)
	if err := c.verify(q, received, nil, nil); err != nil {
		s.refuse(m, err)
	}
}

// takeVerify does the same where requests are read. A request that came before is found by the SHA-256 of its body, so that no
// key is kept.
func (c *call) takeVerify(data []byte, _ *cacheLookup) error {
	s, sum := c.svc, sha256.Sum256(data)
	lookup := s.verifies.locate(sum[:])
	lookup.search(sum[:])
	if k := lookup.hit; k != nil && s.cfg.Keys.Holds(k.verified.key) && s.decoder.reuse(k, engine.Consume, &c.Request) {
		c.head = k.verified.head
		return c.submit()
	}
	q, err := s.decodeVerify(data)
	if err != nil {
		c.release()
		return errLeft
	}
	return c.verify(q, c.Received, &lookup, sum[:])
}

// verify answers if the key is cached, or else has it looked up. If lookup is not nil the request may be cached there, under
// sum. After an error the call is released, and the caller answers.
func (c *call) verify(q *limits.VerifyRequest, received time.Time, lookup *cacheLookup, sum []byte) error {
	s := c.svc
	if k, code, ok := s.cfg.Keys.VerifyCached(q.APIKey); ok {
		return c.verified(q, k, code, lookup, sum)
	}
	s.begin()
	if !s.verifySlots.tryGo(func() { c.lookUp(q, received); s.end() }) {
		c.release()
		s.end()
		return engine.ErrOverloaded
	}
	return nil
}

// maxVerifies bounds the requests that wait for a look-up. There may be many, because requests with
// the same key share one.
const maxVerifies = 4096

// lookUp verifies a key that is not cached, and answers.
func (c *call) lookUp(q *limits.VerifyRequest, received time.Time) {
	s, reply := c.svc, string(c.reply)
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.storeTimeout)
	defer cancel()
	k, code, err := s.cfg.Keys.Verify(ctx, q.APIKey)
	if err != nil {
		s.noteStoreFailure(limits.SubjectVerify, err)
		c.release()
	} else {
		s.noteStoreAnswer(limits.SubjectVerify)
		c.Received, c.Waited = time.Time{}, time.Since(received)
		err = c.verified(q, k, code, nil, nil)
	}
	if err != nil {
		s.publish(s.errorMsg(reply, err))
	}
}

// verified answers a request whose key was verified: with what its limits decide if it is valid, else with the code.
func (c *call) verified(q *limits.VerifyRequest, k *keys.Key, code keys.Code, lookup *cacheLookup, sum []byte) error {
	if code != keys.Valid {
		return c.answerInvalid(k, code)
	}
	by, pure, err := c.forKey(q, k)
	if err != nil {
		c.release()
		return err
	}
	if pure && lookup != nil {
		lookup.store(sum, &c.Request, by, &verifiedKey{k, c.head})
	}
	return c.submit()
}

// answerInvalid answers that a key is not valid.
func (c *call) answerInvalid(k *keys.Key, code keys.Code) error {
	defer c.release()
	body, err := json.Marshal(verifyReply(k, code))
	if err != nil {
		return err
	}
	c.body, c.AtOnce = append(c.body[:0], body...), true
	if !c.answerInline() {
		c.answerViaNATS()
	}
	return nil
}

func verifyReply(k *keys.Key, code keys.Code) *limits.VerifyReply {
	v := &limits.VerifyReply{Valid: code == keys.Valid, Code: string(code)}
	if k != nil {
		v.Key = &limits.KeyRef{ID: k.ID, Name: k.Name}
		v.User, v.Tier, v.Attributes = k.User, k.Tier, k.Attributes
	}
	return v
}

// verifiedKey is the valid key of a request, and the beginning of the answer to it.
type verifiedKey struct {
	key  *keys.Key
	head []byte
}

// forKey fills the call with what a valid key asks for. by and pure are as for [decoder.policyRequest].
func (c *call) forKey(q *limits.VerifyRequest, k *keys.Key) (by resolvedBy, pure bool, err error) {
	head, err := json.Marshal(verifyReply(k, keys.Valid))
	if err != nil {
		return by, false, err
	}
	c.head = append(head[:len(head)-1], `,"decision":`...)
	return c.svc.decoder.policyRequest(engine.Consume, asKey(q, k), &c.Request)
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
