package channel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/seed503877ad/limits/internal/alerts"
)

// guard refuses to connect to addresses that are not public, except those in its ranges. The dialer asks it when it
// connects, after the lookup of the name, so that a name whose address changes meanwhile (DNS rebinding) is refused too.
type guard []netip.Prefix

// CheckTarget returns an error if the channel's host is localhost or an address that is neither public nor in allow. It
// looks no names up: other names pass, and the guard checks their addresses when it connects.
func CheckTarget(spec *alerts.ChannelSpec, allow []netip.Prefix) error {
	host := strings.ToLower(strings.TrimSuffix(spec.Host(), "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, 6.3: always loopback
		err := guard(allow).check(netip.MustParseAddr("127.0.0.1"))
		if err != nil && guard(allow).check(netip.IPv6Loopback()) == nil {
			err = nil
		}
		return err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return guard(allow).check(addr)
	}
	return nil
}

// control is a [net.Dialer.Control].
func (g guard) control(network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("connect over %s: only TCP is supported", network)
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("connect: %q is not an address", address)
	}
	return g.check(at.Addr())
}

func (g guard) check(addr netip.Addr) error {
	// ::ffff:127.0.0.1 reaches 127.0.0.1; a zone only names a network interface.
	addr = addr.Unmap().WithZone("")
	if public(addr) || slices.ContainsFunc(g, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return nil
	}
	return fmt.Errorf("refused: %s is not a public internet address; to allow it, add its range to --alerts-allow, "+
		"such as %s", addr, netip.PrefixFrom(addr, addr.BitLen()))
}

// notPublic are the ranges that IANA's special-purpose address registries (RFC 6890) list as not globally reachable,
// multicast, and the ranges of IPv6 that embed an IPv4 address, through which a private one could be reached.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// globalUnicast is the part of IPv6 that is assigned to public networks. Loopback, link-local, unique local, multicast,
// IPv4-compatible and NAT64 addresses are outside it.
var globalUnicast = netip.MustParsePrefix("2000::/3")

func public(addr netip.Addr) bool {
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func prefixes(all ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(all))
	for i, p := range all {
		parsed[i] = netip.MustParsePrefix(p)
	}
	return parsed
}
