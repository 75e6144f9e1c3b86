//go:build linux && cgo

package ibv

import "github.com/rpcrdma/rpcrdma/cgo"

// A Rate is a limit of the speed of a path, as [AHAttr.StaticRate] has it: see ibv_rate_to_mbps(3). The zero value is the
// most that the port can.
type Rate uint8

// RateOfMult returns the Rate that is mult times 2.5 Gbit/s, zero for other numbers.
//
// Implements: enum ibv_rate mult_to_ibv_rate(int mult)
func RateOfMult(mult int) Rate { return Rate(cgo.MultToRate(mult)) }

// RateOfMbps returns the Rate of mbps Mbit/s, zero for other numbers.
//
// Implements: enum ibv_rate mbps_to_ibv_rate(int mbps)
func RateOfMbps(mbps int) Rate { return Rate(cgo.MbpsToRate(mbps)) }

// Mult returns the rate as a multiple of 2.5 Gbit/s, and -1 if it is not one.
//
// Implements: int ibv_rate_to_mult(enum ibv_rate rate)
func (r Rate) Mult() int { return cgo.RateToMult(int32(r)) }

// Mbps returns the rate in Mbit/s, -1 for the most that the port can and for a value that is not known.
//
// Implements: int ibv_rate_to_mbps(enum ibv_rate rate)
func (r Rate) Mbps() int { return cgo.RateToMbps(int32(r)) }

// FlowLabelToUDPPort returns the source port that RoCE v2 derives from a flow label of 20 bits, for [GlobalRoute].
//
// Implements: static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t fl)
func FlowLabelToUDPPort(label uint32) uint16 { return cgo.FlowLabelToUDPPort(label) }
