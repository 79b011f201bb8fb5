package bus

import (
	"context"
	"errors"
	"fmt"

	limits "github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/keys"
)

// maxTime bounds times on the wire: the last that RFC 3339 can write, the end of the year 9999.
const maxTime = 253402300799999

// The attributes that verify makes of a key's own fields.
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

const createKeyFields = "user, name, tier, attributes, expiresAt"

func (s *Service) decodeCreateKey(data []byte) (k keys.Key, err error) {
	p := s.decoder.parsers.Get().(*parser)
	defer s.decoder.parsers.Put(p)
	p.reset()
	err = p.document(data, func(name []byte) (err error) {
		switch string(name) {
		case "user":
			k.User, err = p.text("user", limits.MaxAttributeBytes)
		case "name":
			k.Name, err = p.text("name", limits.MaxNameBytes)
		case "tier":
			k.Tier, err = p.text("tier", limits.MaxNameBytes)
		case "attributes":
			err = p.attribute()
			k.Attributes = p.attributes
		case "expiresAt":
			k.ExpiresAt, err = p.number("expiresAt", 1, maxTime)
		default:
			err = p.unknown(name, createKeyFields)
		}
		return err
	})
	if err != nil {
		return k, err
	}
	return k, s.checkCreateKey(&k)
}

func (s *Service) checkCreateKey(k *keys.Key) error {
	if k.User == "" {
		return badInput("user", "user", "user is missing; say whose requests the key makes")
	}
	if len(k.Attributes) > limits.MaxKeyAttributes {
		return badInput("attributes", "attributes", "the key has %d attributes; at most %d are taken",
			len(k.Attributes), limits.MaxKeyAttributes)
	}
	for _, name := range []string{attributeUser, attributeKey, attributeTier} {
		if _, given := k.Attributes[name]; given {
			return badInput("attributes", "attributes."+name, "attribute %s is given by the key itself; leave it out", name)
		}
	}
	if now := s.now().UnixMilli(); k.ExpiresAt != 0 && k.ExpiresAt <= now {
		return badInput("expiresAt", "expiresAt", "expiresAt %d is not in the future (now is %d); it is in Unix milliseconds",
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
	reply := limits.KeyList{Keys: make([]limits.APIKey, len(page))}
	for i := range page {
		reply.Keys[i] = wireKey(&page[i])
	}
	if more {
		reply.Next = page[len(page)-1].ID
	}
	return reply, nil
}

func decodeListKeys(data []byte) (keys.Filter, error) {
	r := newReader()
	f := keys.Filter{Max: defaultListPage}
	err := r.document(data, func(name []byte) error {
		var b []byte
		var err error
		switch string(name) {
		case "user":
			b, err = r.printable("user", 0, limits.MaxAttributeBytes)
			f.User = string(b)
		case "prefix":
			b, err = r.printable("prefix", 0, limits.MaxNameBytes)
			f.Prefix = string(b)
		case "after":
			b, err = r.printable("after", 0, limits.MaxNameBytes)
			f.After = string(b)
		case "max":
			var n int64
			n, err = r.number("max", 1, limits.MaxListPage)
			f.Max = int(n)
		default:
			err = r.unknown(name, "user, prefix, after, max")
		}
		return err
	})
	return f, err
}

func (s *Service) revokeKey(ctx context.Context, data []byte) (any, error) {
	id, _, err := decodeKeyChange(data, false)
	if err != nil {
		return nil, err
	}
	k, err := s.cfg.Keys.Revoke(ctx, id)
	return s.keyChanged("API key revoked", id, k, err)
}

func (s *Service) expireKey(ctx context.Context, data []byte) (any, error) {
	id, at, err := decodeKeyChange(data, true)
	if err != nil {
		return nil, err
	}
	k, err := s.cfg.Keys.Expire(ctx, id, at)
	return s.keyChanged("API key expires", id, k, err)
}

func (s *Service) keyChanged(what, id string, k keys.Key, err error) (any, error) {
	if errors.Is(err, keys.ErrUnknown) {
		return nil, &limits.Error{Status: 404, Code: limits.CodeUnknownKey, Field: "id",
			Message: fmt.Sprintf("there is no API key with the id %q; "+limits.SubjectKeysList+" lists them", id)}
	}
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info(what, "id", id, "user", k.User, "expiresAt", k.ExpiresAt)
	return limits.KeyReply{Key: wireKey(&k)}, nil
}

// decodeKeyChange reads the body of revoke, or of expire. The id is not told when it is wrong: it may be a whole key.
func decodeKeyChange(data []byte, expires bool) (id string, at int64, err error) {
	r := newReader()
	known, at := "id", int64(-1)
	if expires {
		known = "id, expiresAt"
	}
	err = r.document(data, func(name []byte) (err error) {
		switch {
		case string(name) == "id":
			id, err = r.secret("id")
		case string(name) == "expiresAt" && expires:
			at, err = r.number("expiresAt", 0, maxTime)
		default:
			err = r.unknown(name, known)
		}
		return err
	})
	switch {
	case err != nil:
		return "", 0, err
	case !keys.IsID(id):
		return "", 0, badInput("id", "id", "id is none of an API key; want the 8 letters and digits behind the key's prefix")
	case expires && at < 0:
		return "", 0, badInput("expiresAt", "expiresAt", "expiresAt is missing; give Unix milliseconds, or 0 for never")
	}
	return id, at, nil
}

// secret reads a string that no message may repeat.
func (r *reader) secret(field string) (string, error) {
	v, err := r.value()
	if err != nil {
		return "", err
	}
	if v.Kind() != '"' {
		return "", r.bad(field, "%s must be a string; got %s", field, kindName(v.Kind()))
	}
	return string(r.unquote(v)), nil
}

func wireKey(k *keys.Key) limits.APIKey {
	return limits.APIKey{ID: k.ID, Name: k.Name, User: k.User, Tier: k.Tier, Attributes: k.Attributes,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt}
}
