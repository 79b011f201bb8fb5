package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/keys"
)

// maxTime bounds times on the wire: the last that RFC 3339 can express, the end of the year 9999.
const maxTime = 253402300799999

// The attributes that verify sets from a key's own fields.
const (
	attributeUser = "user"
	attributeKey  = "key"
	attributeTier = "tier"
)

func (s *Service) createKey(ctx context.Context, data []byte) (any, error) {
	k, err := s.decodeCreateKey(data)
	if err != nil {
		return nil, err
	}
	text, k, err := s.cfg.Keys.Create(ctx, k)
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("API key created", "id", k.ID, "user", k.User)
	return limits.CreateKeyReply{APIKey: text, Key: wireKey(&k)}, nil
}

func (s *Service) decodeCreateKey(data []byte) (k keys.Key, err error) {
	p := s.decoder.acquireParser()
	defer s.decoder.parsers.Put(p)
	err = p.fields(data,
		text("user", &k.User, 1, limits.MaxAttributeBytes),
		text("name", &k.Name, 1, limits.MaxNameBytes),
		text("tier", &k.Tier, 1, limits.MaxNameBytes),
		field{"attributes", func(*reader) error {
			err := p.readAttributes()
			k.Attributes = p.attributes
			return err
		}},
		number("expiresAt", &k.ExpiresAt, 1, maxTime))
	if err != nil {
		return k, err
	}
	return k, s.checkCreateKey(&k)
}

func (s *Service) checkCreateKey(k *keys.Key) error {
	if k.User == "" {
		return invalid("user", "user is missing; want the user whose requests the key makes")
	}
	if len(k.Attributes) > limits.MaxKeyAttributes {
		return invalid("attributes", "the key has %d attributes; at most %d are allowed",
			len(k.Attributes), limits.MaxKeyAttributes)
	}
	for _, name := range []string{attributeUser, attributeKey, attributeTier} {
		if _, given := k.Attributes[name]; given {
			return badInput("attributes", "attributes."+name, "attribute %s is set from the key itself; leave it out", name)
		}
	}
	if now := s.now().UnixMilli(); k.ExpiresAt != 0 && k.ExpiresAt <= now {
		return invalid("expiresAt", "expiresAt %d is not in the future (now is %d); want Unix milliseconds",
			k.ExpiresAt, now)
	}
	return nil
}

func (s *Service) listKeys(ctx context.Context, data []byte) (any, error) {
	f, err := decodeListKeys(data)
	if err != nil {
		return nil, err
	}
	page, more, err := s.cfg.Keys.List(ctx, f)
	if err != nil {
		return nil, err
	}
	reply := limits.KeyList{Keys: wireAll(page, wireKey)}
	if more {
		reply.Next = page[len(page)-1].ID
	}
	return reply, nil
}

func decodeListKeys(data []byte) (keys.Filter, error) {
	f := keys.Filter{Max: defaultListPage}
	err := readFields(data,
		text("user", &f.User, 0, limits.MaxAttributeBytes),
		text("prefix", &f.Prefix, 0, limits.MaxNameBytes),
		text("after", &f.After, 0, limits.MaxNameBytes),
		number("max", &f.Max, 1, limits.MaxListPage))
	return f, err
}

func (s *Service) revokeKey(ctx context.Context, data []byte) (any, error) {
	id, err := decodeKeyID(data)
	if err != nil {
		return nil, err
	}
	k, err := s.cfg.Keys.Revoke(ctx, id)
	return s.keyChanged("API key revoked", id, k, err)
}

func (s *Service) expireKey(ctx context.Context, data []byte) (any, error) {
	id, at, err := s.decodeExpireKey(data)
	if err != nil {
		return nil, err
	}
	k, err := s.cfg.Keys.Expire(ctx, id, at)
	return s.keyChanged("API key expiry set", id, k, err)
}

func (s *Service) keyChanged(what, id string, k keys.Key, err error) (any, error) {
	if errors.Is(err, keys.ErrUnknown) {
		return nil, &limits.Error{Status: 404, Code: limits.CodeUnknownKey, Field: "id",
			Message: fmt.Sprintf("no API key with id %q; "+limits.SubjectKeysList+" (limiter keys list) lists them", id)}
	}
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info(what, "id", id, "user", k.User, "expiresAt", k.ExpiresAt)
	return limits.KeyReply{Key: wireKey(&k)}, nil
}

// decodeKeyID reads an id and further fields. No error shows a wrong id: it may be a whole key.
func decodeKeyID(data []byte, more ...field) (id string, err error) {
	first := field{"id", func(r *reader) (err error) {
		id, err = r.secret("id")
		return err
	}}
	err = readFields(data, append([]field{first}, more...)...)
	switch {
	case err != nil:
		return "", err
	case id == "":
		return "", invalid("id", "id is missing; want the 8 letters and digits after the key's prefix")
	case !keys.IsID(id):
		return "", invalid("id", "id is not that of an API key; want the 8 letters and digits after the key's prefix")
	}
	return id, nil
}

// decodeExpireKey refuses a time for which keys-prune would soon remove the key for good: it is a mistake, such as seconds
// or a mistyped year.
func (s *Service) decodeExpireKey(data []byte) (id string, at int64, err error) {
	at = -1
	id, err = decodeKeyID(data, number("expiresAt", &at, 0, maxTime))
	switch {
	case err != nil:
	case at < 0:
		err = invalid("expiresAt", "expiresAt is missing; give Unix milliseconds, or 0 for never")
	case at > 0 && at < s.now().Add(-keys.EndedRetention).UnixMilli():
		err = invalid("expiresAt", "expiresAt %d (%s) is over %d days ago and would remove the key at the next keys-prune; want Unix milliseconds; to end a key, revoke it",
			at, time.UnixMilli(at).UTC().Format(time.RFC3339), keys.EndedRetention/(24*time.Hour))
	}
	return id, at, err
}

func wireKey(k *keys.Key) limits.APIKey {
	return limits.APIKey{ID: k.ID, Name: k.Name, User: k.User, Tier: k.Tier, Attributes: k.Attributes,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt}
}
