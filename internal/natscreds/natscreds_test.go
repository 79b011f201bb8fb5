package natscreds

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// seed and account are seeds of a user and of an account, and token looks like a JWT. They are used nowhere else.
const (
	seed    = "SUAARTO75FCMY73KHRPQUGIJBX3CKJKPOIO3XELZG3VSYC3HEOWQZI4UCQ"
	public  = "UBIS2AP52WFSN5HB7TATAQKFTFBO4JSR5HTPGTMCNU27GE2QM4ENBGPA" // of seed
	account = "SAADAAJ46HWUZQ5LZHYZCZYU4RFUCGQHSDVFA66X4427UCO5O3BPMDMUDU"
	token   = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJ1In0.c2ln_-"
)

// block is a part of a credentials file.
func block(what, text string) string {
	return "-----BEGIN " + what + "-----\n" + text + "\n------END " + what + "------\n"
}

func TestOption(t *testing.T) {
	t.Parallel()
	both := block("NATS USER JWT", token) + "\n************ IMPORTANT ************\nNever share it.\n\n" + block("USER NKEY SEED", seed)
	for name, c := range map[string]struct {
		text string
		jwt  bool
		err  string // in place of an option
	}{
		"credentials":                   {text: both, jwt: true},
		"credentials of Windows":        {text: strings.ReplaceAll(both, "\n", "\r\n"), jwt: true},
		"credentials without decor":     {text: token + "\n" + seed + "\n", jwt: true},
		"a seed":                        {text: seed},
		"a seed and its end of line":    {text: seed + "\r\n"},
		"a seed in a block":             {text: block("USER NKEY SEED", seed)},
		"a seed with its public key":    {text: "# the worker\n" + seed + "\n" + public + "\n"},
		"a JWT alone":                   {text: block("NATS USER JWT", token), err: "no nkey seed"},
		"a seed before the JWT":         {text: block("USER NKEY SEED", seed) + block("NATS USER JWT", token), err: "seed nkey"},
		"the seed of an account":        {text: account, err: "Not a valid nkey user seed"},
		"a seed with a letter too much": {text: seed + "A", err: "invalid"},
		"a public key":                  {text: public, err: "no nkey seed"},
		"nothing":                       {text: "", err: "no nkey seed"},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var o nats.Options
		err := Option(file)(&o)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), file) ||
				strings.Contains(err.Error(), seed) || o.UserJWT != nil || o.Nkey != "" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || (o.UserJWT != nil) != c.jwt || (o.Nkey == "") != c.jwt || !c.jwt && o.Nkey != public {
			t.Errorf("%s: %v, nkey %q", name, err, o.Nkey)
			continue
		}
		if signature, err := o.SignatureCB([]byte("nonce")); err != nil || len(signature) != 64 {
			t.Errorf("%s: %d bytes of signature, %v", name, len(signature), err)
		}
		if !c.jwt {
			continue
		}
		if got, err := o.UserJWT(); err != nil || got != token {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestAFileThatBecomesASeedIsNotSent in place of the JWT, and the option uses the seed when it is applied again.
func TestAFileThatBecomesASeedIsNotSent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(token + "\n" + seed)
	var o nats.Options
	option := Option(file)
	if err := option(&o); err != nil {
		t.Fatal(err)
	}
	write(strings.Replace(token, "eyJ0", "eyJ1", 1) + "\n" + seed)
	if got, err := o.UserJWT(); err != nil || got == token {
		t.Errorf("%q, %v; the new one was not read", got, err)
	}
	write(seed)
	if got, err := o.UserJWT(); got != "" || err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%q, %v", got, err)
	}
	if err := option(&o); err != nil || o.UserJWT != nil || o.Nkey != public {
		t.Errorf("%v, nkey %q", err, o.Nkey)
	}
	var reconnects nats.Options
	write(token + "\n" + seed)
	if err := option(&reconnects); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got, err := reconnects.UserJWT(); got != "" || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file) {
		t.Errorf("%q, %v", got, err)
	}
	if err := option(&o); err == nil || !strings.Contains(err.Error(), file) || o.Nkey != public {
		t.Errorf("%v, nkey %q", err, o.Nkey)
	}
}
