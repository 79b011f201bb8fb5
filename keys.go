package limits

import "context"

// The subjects of API keys.
const (
	SubjectVerify     = "limits.verify"
	SubjectKeysCreate = "limits.admin.keys.create"
	SubjectKeysList   = "limits.admin.keys.list"
	SubjectKeysRevoke = "limits.admin.keys.revoke"
	SubjectKeysExpire = "limits.admin.keys.expire"
)

// The codes of a [VerifyReply] for a key that is not valid.
const (
	KeyUnknown  = "unknown"  // the service has no such key; it removes keys 30 days after they were revoked or expired
	KeyInactive = "inactive" // revoked
	KeyExpired  = "expired"
)

// CodeUnknownKey is the code of a 404: no API key has the id.
const CodeUnknownKey = "unknown_key"

// Bounds of API keys and attributes.
const (
	MaxAttributes     = 32  // attributes in one request
	MaxKeyAttributes  = 16  // attributes of one API key
	MaxAttributeBytes = 256 // value of an attribute, and the user: 1 to 256 bytes of printable UTF-8
)

// VerifyRequest is the body of verify: an API key, and the fields of a [Request] that is decided by policies.
type VerifyRequest struct {
	// APIKey is the whole key, as it was shown when it was created.
	APIKey string `json:"apiKey"`
	// Attributes are those of the request. The attributes of the key, and "user", "key" (the key's id) and "tier" (if
	// the key has one), replace attributes with the same name.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Policy is the name of a policy. If it is left out, every policy whose match fits the attributes applies.
	Policy string `json:"policy,omitempty"`
	// Tier applies if the key has no tier of its own.
	Tier string `json:"tier,omitempty"`
	// Cost is what the request charges to each limit: 1 by default, up to [MaxAmount].
	Cost int64 `json:"cost,omitzero"`
	// ID makes the charge idempotent, as in a [Request].
	ID string `json:"id,omitempty"`
}

// VerifyReply says whether a key is valid and, if it is, whom it belongs to and what its limits decided. A request may
// proceed if the key is valid and the decision allows it: see [VerifyReply.Allowed].
type VerifyReply struct {
	Valid bool `json:"valid"`
	// Code says why a key is not valid: [KeyUnknown], [KeyInactive] or [KeyExpired].
	Code string `json:"code,omitempty"`
	// Key is left out only for an unknown key.
	Key *KeyRef `json:"key,omitempty"`
	// User, Tier and Attributes are those of the key.
	User       string            `json:"user,omitempty"`
	Tier       string            `json:"tier,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Decision is that of all matching policies, charged as by consume. Every valid key has one, and no other key.
	Decision *Reply `json:"decision,omitempty"`
}

// Allowed reports whether the key is valid and its limits allow the request.
func (r *VerifyReply) Allowed() bool { return r.Valid && r.Decision != nil && r.Decision.Allowed }

// KeyRef identifies an API key.
type KeyRef struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// APIKey is what the service stores of an API key: all but the secret. Times are Unix milliseconds.
type APIKey struct {
	ID         string            `json:"id"`
	Name       string            `json:"name,omitempty"`
	User       string            `json:"user"`
	Tier       string            `json:"tier,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	CreatedAt  int64             `json:"createdAt"`
	// ExpiresAt is left out for a key that does not expire, RevokedAt for a key that was not revoked.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
	RevokedAt int64 `json:"revokedAt,omitzero"`
}

// CreateKeyRequest is the body of admin.keys.create.
type CreateKeyRequest struct {
	// User is the owner of the key. Requests with the key are limited as those of this user.
	User string `json:"user"`
	// Name is a label for people.
	Name string `json:"name,omitempty"`
	Tier string `json:"tier,omitempty"`
	// Attributes are added to those of each request that is made with the key: up to [MaxKeyAttributes], none of them
	// named "user", "key" or "tier".
	Attributes map[string]string `json:"attributes,omitempty"`
	// ExpiresAt is when the key expires, in Unix milliseconds; never by default.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
}

// CreateKeyReply has a new key. APIKey is not stored and never shown again.
type CreateKeyReply struct {
	APIKey string `json:"apiKey"`
	Key    APIKey `json:"key"`
}

// ListKeysRequest is the body of admin.keys.list: a page of keys in order of their ids.
type ListKeysRequest struct {
	// User selects the keys of one user; all users by default.
	User string `json:"user,omitempty"`
	// Prefix selects the keys whose id begins with it.
	Prefix string `json:"prefix,omitempty"`
	// After is the Next of the previous page.
	After string `json:"after,omitempty"`
	// Max is how many keys a page holds: 100 by default, up to [MaxListPage].
	Max int `json:"max,omitzero"`
}

// KeyList is a page of keys. Next is the After of the following page, and left out on the last page.
type KeyList struct {
	Keys []APIKey `json:"keys"`
	Next string   `json:"next,omitempty"`
}

// RevokeKeyRequest is the body of admin.keys.revoke.
type RevokeKeyRequest struct {
	// ID is the id of the key, which is also the part of the key after its prefix.
	ID string `json:"id"`
}

// ExpireKeyRequest is the body of admin.keys.expire.
type ExpireKeyRequest struct {
	ID string `json:"id"`
	// ExpiresAt is when the key expires, in Unix milliseconds, at most 30 days ago; 0 means never.
	ExpiresAt int64 `json:"expiresAt"`
}

// KeyReply is a key after it was changed.
type KeyReply struct {
	Key APIKey `json:"key"`
}

// VerifyKey verifies an API key and, if it is valid, charges the limits of its user, in one step. A key that is not
// valid is a normal reply, not an error. If the request has an ID, the charge can be settled, like one of
// [Client.Consume].
func (c *Client) VerifyKey(ctx context.Context, r VerifyRequest) (*VerifyReply, error) {
	answer, err := c.ask(ctx, SubjectVerify, r)
	if err != nil {
		return nil, err
	}
	reply, ok := readVerifyReply(answer)
	if !ok {
		reply, err = decodeVerifyReply(answer)
	}
	switch {
	case err != nil:
		return nil, err
	case !reply.Valid:
		return reply, nil
	case reply.Key == nil:
		return nil, missingField(SubjectVerify, "key")
	case reply.Decision == nil:
		return nil, missingField(SubjectVerify, "decision.allowed")
	}
	reply.Decision.ID = r.ID
	return reply, nil
}

// decodeVerifyReply reads any answer about an API key.
func decodeVerifyReply(answer []byte) (*VerifyReply, error) {
	body, err := readAnswer[struct {
		VerifyReply
		Valid    *bool         `json:"valid"`
		Decision *decisionBody `json:"decision"`
	}](SubjectVerify, answer)
	switch {
	case err != nil:
		return nil, err
	case body.Valid == nil:
		return nil, missingField(SubjectVerify, "valid")
	}
	body.VerifyReply.Valid, body.VerifyReply.Decision = *body.Valid, body.Decision.reply()
	return &body.VerifyReply, nil
}

// CreateKey creates an API key. If the call gets no answer, a key that nobody knows may have been created. To find and
// revoke it, list the keys of the user.
func (c *Client) CreateKey(ctx context.Context, r CreateKeyRequest) (*CreateKeyReply, error) {
	return call[CreateKeyReply](ctx, c, SubjectKeysCreate, r)
}

// ListKeys returns one page of API keys.
func (c *Client) ListKeys(ctx context.Context, r ListKeysRequest) (*KeyList, error) {
	return call[KeyList](ctx, c, SubjectKeysList, r)
}

// RevokeKey makes an API key invalid for good. Every worker knows within a second.
func (c *Client) RevokeKey(ctx context.Context, id string) (*KeyReply, error) {
	return call[KeyReply](ctx, c, SubjectKeysRevoke, RevokeKeyRequest{ID: id})
}

// ExpireKey sets when an API key expires, in Unix milliseconds; 0 means never. A time in the past ends the key at once. One
// that is more than 30 days ago, such as one in seconds, is refused (Status 400): keys that expired so long ago are removed.
func (c *Client) ExpireKey(ctx context.Context, id string, at int64) (*KeyReply, error) {
	return call[KeyReply](ctx, c, SubjectKeysExpire, ExpireKeyRequest{ID: id, ExpiresAt: at})
}
