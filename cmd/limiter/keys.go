package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seed503877ad/limits"
)

// keysCmd administers API keys.
type keysCmd struct {
	Create keysCreateCmd `cmd:"" help:"Create an API key and print it, once."`
	List   keysListCmd   `cmd:"" help:"List API keys."`
	Revoke keysRevokeCmd `cmd:"" help:"End an API key for good."`
	Expire keysExpireCmd `cmd:"" help:"Set when an API key expires."`
}

func (*keysCmd) Help() string {
	return `Examples:

  limiter keys create --user 7 --tier pro
  limiter keys list --user 7`
}

type keysCreateCmd struct {
	clientFlags
	User       string         `required:"" placeholder:"USER" help:"Whose requests the key makes."`
	Name       string         `placeholder:"NAME" help:"A name for people."`
	Tier       string         `placeholder:"TIER" help:"The tier whose limits count."`
	Attributes attributeFlags `name:"attribute" short:"a" placeholder:"NAME=VALUE" help:"An attribute of every request with the key; may be repeated."`
	Expires    spanFlag       `placeholder:"SPAN" help:"When it expires, from now, such as 30d or 12h; never unless set."`
}

func (*keysCreateCmd) Help() string {
	return `The key alone is printed on standard output, and what it is for on standard error. It is not stored and cannot be
shown again.

Examples:

  limiter keys create --user 7 --tier pro --name "ci of the web shop" --expires 90d
  limiter keys create --user 7 -a plan=gold -a region=eu > key.txt`
}

func (c *keysCreateCmd) Run(s *session) error {
	request := limits.CreateKeyRequest{User: c.User, Name: c.Name, Tier: c.Tier, Attributes: c.Attributes}
	if c.Expires != 0 {
		request.ExpiresAt = s.now().Add(time.Duration(c.Expires)).UnixMilli()
	}
	signal.Ignore(syscall.SIGPIPE) // it would end the process before it says which key was lost
	var reply limits.CreateKeyReply
	if err := c.ask(s, limits.SubjectKeysCreate, request, &reply); err != nil {
		return err
	}
	if !c.JSON {
		fmt.Fprintf(s.err, "API key %s of user %s, expires: %s. It is shown only once:\n", reply.Key.ID, reply.Key.User,
			moment(s, reply.Key.ExpiresAt, "never"))
		fmt.Fprintln(s.out, reply.APIKey)
	}
	if s.out.err != nil {
		return fmt.Errorf("API key %s was created but could not be printed: %w; nobody has it, so revoke it with: limiter keys revoke %[1]s",
			reply.Key.ID, s.out.err)
	}
	return nil
}

type keysListCmd struct {
	clientFlags
	User   string `placeholder:"USER" help:"Only keys of one user."`
	Prefix string `placeholder:"P" help:"Only keys whose ids begin with P."`
	After  string `empty:"" placeholder:"ID" help:"Begin after an id."`
	Max    *int   `placeholder:"N" help:"Show one page of at most N keys; all pages unless set."`
}

func (*keysListCmd) Help() string {
	return `Examples:

  limiter keys list
  limiter keys list --user 7
  limiter keys list --json | jq -r '.keys[] | select(.revokedAt) | .id'      # one page per line`
}

func (c *keysListCmd) Validate() error { return c.validateMax(pageSize(c.Max), limits.MaxListPage) }

func (c *keysListCmd) Run(s *session) error {
	return showPages(s, &c.clientFlags, c.Max, c.After, listing[limits.KeyList, limits.APIKey]{
		verb: "keys list", noun: "API keys", subject: limits.SubjectKeysList,
		columns: []any{"ID", "USER", "TIER", "STATE", "CREATED", "EXPIRES", "NAME", "ATTRIBUTES"},
		ask: func(after string, max int) any {
			return limits.ListKeysRequest{User: c.User, Prefix: c.Prefix, After: after, Max: max}
		},
		items: func(p *limits.KeyList) ([]limits.APIKey, string) { return p.Keys, p.Next },
		row:   func(k *limits.APIKey) []any { return keyRow(s, k) },
	})
}

func keyRow(s *session, k *limits.APIKey) []any {
	state := "active"
	switch {
	case k.RevokedAt != 0:
		state = "revoked"
	case k.ExpiresAt != 0 && k.ExpiresAt <= s.now().UnixMilli():
		state = "expired"
	}
	return []any{k.ID, k.User, dash(k.Tier), state, moment(s, k.CreatedAt, "-"), moment(s, k.ExpiresAt, "never"),
		dash(k.Name), dash(pairs(k.Attributes))}
}

type keysRevokeCmd struct {
	clientFlags
	ID string `arg:"" help:"The id of the key: the 8 letters and digits behind its prefix."`
}

func (*keysRevokeCmd) Help() string {
	return `Within a second no worker accepts the key. This cannot be undone.

Examples:

  limiter keys revoke 4fJq01Zx`
}

func (c *keysRevokeCmd) Run(s *session) error {
	return c.changeKey(s, limits.SubjectKeysRevoke, limits.RevokeKeyRequest{ID: c.ID}, func(k *limits.APIKey) string {
		return "revoked at " + moment(s, k.RevokedAt, "-")
	})
}

// changeKey sends a change of an API key, and prints what say says about the key as it is then.
func (f *clientFlags) changeKey(s *session, subject string, request any, say func(*limits.APIKey) string) error {
	var reply limits.KeyReply
	if err := f.ask(s, subject, request, &reply); err != nil || f.JSON {
		return err
	}
	fmt.Fprintf(s.out, "API key %s of user %s: %s\n", reply.Key.ID, reply.Key.User, say(&reply.Key))
	return nil
}

type keysExpireCmd struct {
	clientFlags
	ID    string   `arg:"" help:"The id of the key: the 8 letters and digits behind its prefix."`
	At    timeFlag `xor:"when" placeholder:"TIME" help:"When, such as 2027-01-31 or 2027-01-31T12:00:00Z."`
	In    spanFlag `xor:"when" placeholder:"SPAN" help:"How long from now, such as 30d or 12h."`
	Never bool     `xor:"when" help:"It never expires."`
}

func (*keysExpireCmd) Help() string {
	return `One of --at, --in and --never says when.

Examples:

  limiter keys expire 4fJq01Zx --in 14d
  limiter keys expire 4fJq01Zx --at 2027-01-31
  limiter keys expire 4fJq01Zx --never`
}

func (c *keysExpireCmd) Validate() error {
	if time.Time(c.At).IsZero() && c.In == 0 && !c.Never { // if the flags of an xor were required, the usage would show all of them
		return errors.New("one of --at, --in and --never is required")
	}
	return c.clientFlags.Validate()
}

func (c *keysExpireCmd) Run(s *session) error {
	at := time.Time(c.At).UnixMilli()
	if c.In != 0 {
		at = s.now().Add(time.Duration(c.In)).UnixMilli()
	}
	if c.Never {
		at = 0
	}
	return c.changeKey(s, limits.SubjectKeysExpire, limits.ExpireKeyRequest{ID: c.ID, ExpiresAt: at}, func(k *limits.APIKey) string {
		if k.RevokedAt != 0 {
			return "expires " + moment(s, k.ExpiresAt, "never") + ", but was revoked " + moment(s, k.RevokedAt, "") + " and stays so"
		}
		return "expires " + moment(s, k.ExpiresAt, "never")
	})
}

// apiKeyVariable is the environment variable that verify reads.
const apiKeyVariable = "LIMITS_API_KEY"

// verifyCmd verifies an API key. The key is not an argument, because arguments are visible in the list of processes and in
// the history of the shell.
type verifyCmd struct {
	clientFlags
	Attributes attributeFlags `name:"attribute" short:"a" placeholder:"NAME=VALUE" help:"An attribute of the request; may be repeated."`
	Policy     string         `placeholder:"NAME" help:"The policy; those that match the attributes unless set."`
	Tier       string         `placeholder:"TIER" help:"The tier of a key that has none."`
	Cost       int64          `default:"1" placeholder:"N" help:"What the request costs (${default})."`
	ID         string         `name:"id" placeholder:"ID" help:"The same id charges once."`
}

func (*verifyCmd) Help() string {
	return `The key is read from LIMITS_API_KEY, else from standard input; a terminal does not show it. The exit status is 3 if
the key is not valid, or its limits deny.

Examples:

  limiter verify -a path=/v1/reports < key.txt
  LIMITS_API_KEY="$(cat key.txt)" limiter verify --policy reports --cost 5`
}

func (c *verifyCmd) Validate() error {
	if c.Cost < 1 { // in the request 0 would mean the default
		return fmt.Errorf("--cost: %d is below 1", c.Cost)
	}
	return c.clientFlags.Validate()
}

func (c *verifyCmd) Run(s *session) error {
	key, err := readAPIKey(s)
	if err != nil {
		return err
	}
	request := limits.VerifyRequest{APIKey: key, Attributes: c.Attributes, Policy: c.Policy, Tier: c.Tier, Cost: c.Cost, ID: c.ID}
	var reply limits.VerifyReply
	if err := c.ask(s, limits.SubjectVerify, request, &reply); err != nil {
		return err
	}
	if !c.JSON {
		printVerified(s, &reply)
	}
	if !reply.Allowed() {
		return errDenied
	}
	return nil
}

func readAPIKey(s *session) (string, error) {
	if key := strings.TrimSpace(os.Getenv(apiKeyVariable)); key != "" {
		return key, nil
	}
	if s.inTTY {
		fmt.Fprint(s.err, "API key: ")
	}
	line, err := s.readSecret("no API key was verified")
	if err != nil {
		return "", err
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", errors.New("read API key: no key on standard input; pipe it in, or set " + apiKeyVariable)
	}
	return line, nil
}

func printVerified(s *session, r *limits.VerifyReply) {
	if !r.Valid {
		fmt.Fprintf(s.out, "not valid: %s\n", r.Code)
	} else {
		fmt.Fprintln(s.out, "valid")
	}
	if r.Key != nil {
		fmt.Fprintf(s.out, "key %s, user %s, tier %s, attributes %s\n", r.Key.ID, r.User, dash(r.Tier), dash(pairs(r.Attributes)))
	}
	if r.Decision != nil {
		printDecision(s, limits.SubjectVerify, r.Decision, "")
	}
}
