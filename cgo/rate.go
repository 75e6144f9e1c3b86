//go:build linux && cgo

package cgo

/*
#include "verbs.h"
*/
import "C"

// RateToMult calls ibv_rate_to_mult, which returns -1 for a rate that is not a multiple.
func RateToMult(rate int32) int { return int(C.ibv_rate_to_mult(C.enum_ibv_rate(rate))) }

// MultToRate calls mult_to_ibv_rate.
func MultToRate(mult int) int32 { return int32(C.mult_to_ibv_rate(C.int(mult))) }

// RateToMbps calls ibv_rate_to_mbps, which returns -1 for an unknown rate.
func RateToMbps(rate int32) int { return int(C.ibv_rate_to_mbps(C.enum_ibv_rate(rate))) }

// MbpsToRate calls mbps_to_ibv_rate.
func MbpsToRate(mbps int) int32 { return int32(C.mbps_to_ibv_rate(C.int(mbps))) }

// FlowLabelToUDPPort calls ibv_flow_label_to_udp_sport.
func FlowLabelToUDPPort(label uint32) uint16 {
	return uint16(C.ibv_flow_label_to_udp_sport(C.uint32_t(label)))
}
