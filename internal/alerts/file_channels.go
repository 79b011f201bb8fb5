package alerts

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/seed503877ad/limits/internal/redact"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Bounds of channels.
const (
	maxChannels    = 50
	maxSecrets     = 8
	maxRecipients  = 20
	maxSecretBytes = 4096
	minKeyBytes    = 24 // of Standard Webhooks
	maxKeyBytes    = 64
)

// channels compiles the channels, after the built-in ones.
func (c *fileCompiler) channels(list []FileChannel) {
	c.rules.Channels = builtInChannels()
	if len(list) > maxChannels {
		c.Add(yamlfile.Index("channels", maxChannels), "more than %d channels; send to one service that passes messages on", maxChannels)
		return
	}
	seen := map[string]int{}
	for i := range list {
		f, path := &list[i], yamlfile.Index("channels", i)
		c.name(f.Name, path+".name")
		if j, ok := seen[f.Name]; ok && f.Name != "" {
			c.Add(path+".name", "%s is already the name of channels[%d]; choose another name", yamlfile.Quote(f.Name), j)
			continue
		}
		seen[f.Name] = i
		if b := c.builtIn(f.Name); b != nil {
			c.configureBuiltIn(b, f, path)
			continue
		}
		c.rules.Channels = append(c.rules.Channels, c.channel(f, path))
	}
}

func (c *fileCompiler) builtIn(name string) *ChannelSpec {
	for i := range c.rules.Channels[:2] {
		if c.rules.Channels[i].Name == name {
			return &c.rules.Channels[i]
		}
	}
	return nil
}

// configureBuiltIn applies what the file says about nats or log.
func (c *fileCompiler) configureBuiltIn(b *ChannelSpec, f *FileChannel, path string) {
	switch {
	case f.Webhook != nil || f.Slack != nil || f.SMTP != nil:
		c.Add(path+".name", "%s is built in, and cannot be a webhook, slack or smtp; give this channel another name", f.Name)
	case f.Resolved == nil && !c.Has(path):
		c.Add(path, "has no effect: %s is built in; remove this entry, or set resolved", f.Name)
	case f.Resolved != nil:
		b.Resolved = *f.Resolved
	}
}

func (c *fileCompiler) channel(f *FileChannel, path string) ChannelSpec {
	s := ChannelSpec{Name: f.Name}
	kinds := 0
	if f.Webhook != nil {
		kinds++
		s.Kind, s.Resolved = ChannelWebhook, true
		s.Webhook = &WebhookSpec{URL: c.url(f.Webhook.URL, path+".webhook.url"), Secrets: c.keys(f.Webhook.Secrets, path+".webhook.secrets")}
	}
	if f.Slack != nil {
		kinds++
		s.Kind = ChannelSlack
		s.Slack = &SlackSpec{URL: c.url(f.Slack.URL, path+".slack.url")}
	}
	if f.SMTP != nil {
		kinds++
		s.Kind = ChannelSMTP
		s.SMTP = c.smtp(f.SMTP, path+".smtp")
	}
	if f.Resolved != nil {
		s.Resolved = *f.Resolved
	}
	if kinds == 0 && !c.Has(path) {
		c.Add(path, "has no target; give it one of webhook, slack, smtp")
	} else if kinds > 1 {
		c.Add(path, "has %d targets; make a channel for each", kinds)
	}
	return s
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// resolve returns the value of a text: what env:NAME or file:/path refers to, or else the text itself. referred says that
// it was a reference; ok is false after an error, and for references with NoSecrets. Errors do not show the value.
func (c *fileCompiler) resolve(text Private, path string) (value string, referred, ok bool) {
	name, isEnv := strings.CutPrefix(string(text), "env:")
	file, isFile := strings.CutPrefix(string(text), "file:")
	switch {
	case !isEnv && !isFile:
		return string(text), false, true
	case isEnv && (!envName.MatchString(name) || strings.HasPrefix(name, "whsec_")): // the name may be the secret itself
		c.Add(path, "env: needs the name of an environment variable, such as env:OPS_SECRET")
		return "", true, false
	case isFile && !filepath.IsAbs(file):
		c.Add(path, "file: needs an absolute path, such as file:/run/secrets/ops")
		return "", true, false
	case c.options.NoSecrets:
		return "", true, false
	case isEnv:
		value, ok = c.options.LookupEnv(name)
		if value = strings.TrimSpace(value); !ok || value == "" {
			c.Add(path, "environment variable %s is not set or is empty; set it in the environment of the service", name)
			return "", true, false
		}
		return value, true, true
	}
	value, err := readSecret(file)
	if err != nil {
		c.Add(path, "%s; fix the file, or name another", err)
	}
	return value, true, err == nil
}

// readSecret reads a small regular file. Reading a pipe or a device could block for ever.
func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(b))
	if len(b) > maxSecretBytes {
		return "", fmt.Errorf("%s has more than %d bytes", path, maxSecretBytes)
	}
	if value == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return value, nil
}

// placeholderURL is used for a URL that is wrong, or not read because of NoSecrets.
const placeholderURL = "https://stand-in.invalid/"

func (c *fileCompiler) url(text Private, path string) string {
	if text == "" {
		c.missing(path, "https://example.com/hook, env:NAME or file:/path")
		return ""
	}
	value, referred, ok := c.resolve(text, path)
	if !ok {
		return placeholderURL
	}
	u, err := url.Parse(value)
	what := ""
	switch {
	case len(value) > 2048:
		what = "has more than 2048 bytes"
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		what = "is not an http or https URL with a host"
	case u.User != nil:
		what = "contains a user name or a password"
	case u.Fragment != "":
		what = "contains a # with a fragment, which is never sent"
	default:
		return value
	}
	if referred {
		what = "the value it refers to " + what
	}
	c.Add(path, "%s; want one such as https://example.com/hook", what)
	return placeholderURL
}

const howToMakeKey = `make one with: echo "whsec_$(openssl rand -base64 32)"`

// keys reads the signing keys of a webhook.
func (c *fileCompiler) keys(list Secrets, path string) (keys [][]byte) {
	if len(list) == 0 {
		c.missing(path, "env:NAME or file:/path, which holds whsec_ followed by base64; "+howToMakeKey)
	}
	if len(list) > maxSecrets {
		c.Add(path, "has %d secrets; want at most %d: remove those that no receiver uses any more", len(list), maxSecrets)
		return nil
	}
	for i, s := range list {
		at := c.Item(path, i)
		if slices.Index(list, s) < i {
			c.Add(at, "is given twice; remove one")
			continue
		}
		if key := c.key(s, at); key != nil {
			keys = append(keys, key)
		}
	}
	return keys
}

func (c *fileCompiler) key(s Private, path string) []byte {
	value, referred, ok := c.resolve(s, path)
	switch {
	case s == "":
		return nil
	case !referred:
		c.Add(path, "a secret is not allowed in this file; put it into an environment variable or a file of its own, and write env:NAME or file:/path")
		return nil
	case !ok:
		return make([]byte, minKeyBytes)
	}
	text, prefixed := strings.CutPrefix(value, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	if !prefixed || err != nil || len(key) < minKeyBytes || len(key) > maxKeyBytes {
		c.Add(path, "the value it refers to is not a Standard Webhooks secret, which is whsec_ followed by the base64 of %d to %d bytes; %s", minKeyBytes, maxKeyBytes, howToMakeKey)
		return nil
	}
	return key
}

func (c *fileCompiler) smtp(f *FileSMTP, path string) *SMTPSpec {
	s := &SMTPSpec{Addr: f.Addr, TLS: f.TLS, Username: f.Username, From: f.From, To: f.To}
	if s.TLS == "" {
		s.TLS = "starttls"
	}
	c.OneOf(s.TLS, path+".tls", "starttls", "tls", "none")
	if f.Addr == "" {
		c.missing(path+".addr", "host:port such as mail.example.com:587")
	} else if err := checkAddr(f.Addr); err != nil {
		c.Add(path+".addr", "%s is not a server address: %s; want host:port such as mail.example.com:587", yamlfile.Quote(redact.URLs(f.Addr)), err)
	}
	c.mailbox(f.From, path+".from")
	c.recipients(f.To, path+".to")
	s.Password = c.password(f, path)
	return s
}

func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return errors.New("it is not host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("the port is not a number from 1 to 65535")
	}
	if host == "" || len(host) > 253 || strings.ContainsAny(host, " /@") {
		return errors.New("the host is missing or invalid")
	}
	return nil
}

func (c *fileCompiler) recipients(to Texts, path string) {
	if len(to) == 0 {
		c.missing(path, "one address or a list, such as ops@example.com")
	}
	if len(to) > maxRecipients {
		c.Add(path, "has %d addresses; want at most %d: use a mailing list", len(to), maxRecipients)
		return
	}
	for i, address := range to {
		at := c.Item(path, i)
		if slices.Index(to, address) < i {
			c.Add(at, "%s is given twice; remove one", yamlfile.Quote(address))
		}
		c.mailbox(address, at)
	}
}

func (c *fileCompiler) mailbox(address, path string) {
	if address == "" {
		c.missing(path, "an address such as limits@example.com")
		return
	}
	if a, err := mail.ParseAddress(address); err != nil || a.Address != address || len(address) > 254 {
		c.Add(path, "%s is not a mail address; want one such as ops@example.com, without a display name", yamlfile.Quote(address))
	} else if name, domain, _ := strings.Cut(address, "@"); !ascii(domain) {
		c.Add(path, "%s has a domain that is not ASCII; write the domain as in DNS, such as xn--bcher-kva.example for bücher.example", yamlfile.Quote(address))
	} else if !ascii(name) {
		c.Add(path, "%s is not ASCII before the @, which not every mail server accepts; use another address of that mailbox", yamlfile.Quote(address))
	}
}

func ascii(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

func (c *fileCompiler) password(f *FileSMTP, path string) string {
	at := path + ".password"
	if f.Password == "" {
		if f.Username != "" {
			c.missing(at, "env:NAME or file:/path; or remove the username")
		}
		return ""
	}
	value, referred, _ := c.resolve(f.Password, at)
	switch {
	case !referred:
		c.Add(at, "a password is not allowed in this file; put it into an environment variable or a file of its own, and write env:NAME or file:/path")
	case f.Username == "":
		c.Add(at, "needs a username; add one, or remove the password")
	case f.TLS == "none":
		c.Add(at, "would be sent over the network unencrypted; want tls: starttls or tls: tls")
	}
	return value
}
