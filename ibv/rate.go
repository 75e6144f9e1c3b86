//go:build linux && cgo

package ibv

import "github.com/rpcrdma/rpcrdma/cgo"

// A Rate limits the rate of a path, for [AHAttr.StaticRate]: see ibv_rate_to_mbps(3). The zero value is the port's
// maximum.
type Rate uint8

// RateOfMult returns the Rate of mult times 2.5 Gbit/s, or zero if it does not exist.
//
// Implements: enum ibv_rate mult_to_ibv_rate(int mult)
func RateOfMult(mult int) Rate { return Rate(cgo.MultToRate(mult)) }

// RateOfMbps returns the Rate of mbps Mbit/s, or zero if it does not exist.
//
// Implements: enum ibv_rate mbps_to_ibv_rate(int mbps)
func RateOfMbps(mbps int) Rate { return Rate(cgo.MbpsToRate(mbps)) }

// Mult returns the rate as a multiple of 2.5 Gbit/s, or -1 if it is not a multiple.
//
// Implements: int ibv_rate_to_mult(enum ibv_rate rate)
func (r Rate) Mult() int { return cgo.RateToMult(int32(r)) }

// Mbps returns the rate in Mbit/s, or -1 for the port's maximum and for unknown values.
//
// Implements: int ibv_rate_to_mbps(enum ibv_rate rate)
func (r Rate) Mbps() int { return cgo.RateToMbps(int32(r)) }

// FlowLabelToUDPPort returns the source port that RoCE v2 derives from a flow label of 20 bits, for [GlobalRoute].
//
// Implements: static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t fl)
func FlowLabelToUDPPort(label uint32) uint16 { return cgo.FlowLabelToUDPPort(label) }
