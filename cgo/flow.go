//go:build linux && cgo

package cgo

/*
#include "verbs.h"
*/
import "C"

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// Filters of flows. All numbers are in host byte order.
type (
	// EthFilter is struct ibv_flow_eth_filter.
	EthFilter struct {
		Dst, Src           [6]byte
		EtherType, VLANTag uint16
	}
	// IPv4Filter is struct ibv_flow_ipv4_filter.
	IPv4Filter struct{ Src, Dst [4]byte }
	// IPv6Filter is struct ibv_flow_ipv6_filter.
	IPv6Filter struct {
		Src, Dst                           [16]byte
		FlowLabel                          uint32
		NextHeader, TrafficClass, HopLimit uint8
	}
	// PortFilter is struct ibv_flow_tcp_udp_filter.
	PortFilter struct{ Dst, Src uint16 }
)

func (f *EthFilter) c() (c C.struct_ibv_flow_eth_filter) {
	*(*[6]byte)(unsafe.Pointer(&c.dst_mac)), *(*[6]byte)(unsafe.Pointer(&c.src_mac)) = f.Dst, f.Src
	c.ether_type, c.vlan_tag = be16(f.EtherType), be16(f.VLANTag)
	return c
}

func (f *IPv4Filter) c() (c C.struct_ibv_flow_ipv4_filter) {
	*(*[4]byte)(unsafe.Pointer(&c.src_ip)), *(*[4]byte)(unsafe.Pointer(&c.dst_ip)) = f.Src, f.Dst
	return c
}

func (f *IPv6Filter) c() (c C.struct_ibv_flow_ipv6_filter) {
	*(*[16]byte)(unsafe.Pointer(&c.src_ip)), *(*[16]byte)(unsafe.Pointer(&c.dst_ip)) = f.Src, f.Dst
	binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&c.flow_label))[:], f.FlowLabel)
	c.next_hdr, c.traffic_class, c.hop_limit = C.uint8_t(f.NextHeader), C.uint8_t(f.TrafficClass), C.uint8_t(f.HopLimit)
	return c
}

func (f *PortFilter) c() C.struct_ibv_flow_tcp_udp_filter {
	return C.struct_ibv_flow_tcp_udp_filter{dst_port: be16(f.Dst), src_port: be16(f.Src)}
}

func be16(n uint16) (c C.uint16_t) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&c))[:], n)
	return c
}

// Types of specifications, enum ibv_flow_spec_type.
const (
	specEth, specIPv4, specIPv6, specTCP, specUDP, specVXLAN = 0x20, 0x30, 0x31, 0x40, 0x41, 0x50
	specInner                                                = 0x100
	specTag, specDrop, specCount                             = 0x1000, 0x1001, 0x1003
)

// kindOf returns a specification type. With inner it applies to the packet inside a tunnel.
func kindOf(typ C.enum_ibv_flow_spec_type, inner bool) C.enum_ibv_flow_spec_type {
	if inner {
		typ |= specInner
	}
	return typ
}

// bytesOf returns the bytes of a specification, which contains its own size.
func bytesOf[T any](s *T, size *C.uint16_t) []byte {
	*size = C.uint16_t(unsafe.Sizeof(*s))
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
}

// EthSpec returns a struct ibv_flow_spec_eth, for [RDMACore.CreateFlow].
func EthSpec(inner bool, val, mask EthFilter) []byte {
	s := C.struct_ibv_flow_spec_eth{_type: kindOf(specEth, inner), val: val.c(), mask: mask.c()}
	return bytesOf(&s, &s.size)
}

// IPv4Spec returns a struct ibv_flow_spec_ipv4.
func IPv4Spec(inner bool, val, mask IPv4Filter) []byte {
	s := C.struct_ibv_flow_spec_ipv4{_type: kindOf(specIPv4, inner), val: val.c(), mask: mask.c()}
	return bytesOf(&s, &s.size)
}

// IPv6Spec returns a struct ibv_flow_spec_ipv6.
func IPv6Spec(inner bool, val, mask IPv6Filter) []byte {
	s := C.struct_ibv_flow_spec_ipv6{_type: kindOf(specIPv6, inner), val: val.c(), mask: mask.c()}
	return bytesOf(&s, &s.size)
}

// PortSpec returns a struct ibv_flow_spec_tcp_udp.
func PortSpec(inner, udp bool, val, mask PortFilter) []byte {
	s := C.struct_ibv_flow_spec_tcp_udp{_type: kindOf(specTCP, inner), val: val.c(), mask: mask.c()}
	if udp {
		s._type = kindOf(specUDP, inner)
	}
	return bytesOf(&s, &s.size)
}

// VXLANSpec returns a struct ibv_flow_spec_tunnel.
func VXLANSpec(val, mask uint32) []byte {
	s := C.struct_ibv_flow_spec_tunnel{_type: specVXLAN}
	binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&s.val.tunnel_id))[:], val)
	binary.BigEndian.PutUint32((*[4]byte)(unsafe.Pointer(&s.mask.tunnel_id))[:], mask)
	return bytesOf(&s, &s.size)
}

// TagSpec returns a struct ibv_flow_spec_action_tag.
func TagSpec(tag uint32) []byte {
	s := C.struct_ibv_flow_spec_action_tag{_type: specTag, tag_id: C.uint32_t(tag)}
	return bytesOf(&s, &s.size)
}

// DropSpec returns a struct ibv_flow_spec_action_drop.
func DropSpec() []byte {
	s := C.struct_ibv_flow_spec_action_drop{_type: specDrop}
	return bytesOf(&s, &s.size)
}

// CountSpec returns a struct ibv_flow_spec_counter_action.
func CountSpec(counters *Counters) []byte {
	s := C.struct_ibv_flow_spec_counter_action{_type: specCount, counters: counters.c()}
	return bytesOf(&s, &s.size)
}
