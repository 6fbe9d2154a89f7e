/* What does the device say of itself? Fixed answers; the SoC's name comes from SIMNPU_SOC. */
#include <stdlib.h>
#include <string.h>
#include "sim.h"

static int current_device = -1, context;

aclError aclInit(const char *config) { return OK; }
aclError aclFinalize(void) { return OK; }
/* All device numbers are one device: as many as SIMNPU_DEVICES says, else as torchrun has processes on this node. */
aclError aclrtGetDeviceCount(uint32_t *count) {
  const char *said = getenv("SIMNPU_DEVICES");
  if (!said) said = getenv("LOCAL_WORLD_SIZE");
  *count = said && atoi(said) > 0 ? (uint32_t)atoi(said) : 1;
  return OK;
}
aclError aclrtSetDevice(int32_t device) { current_device = device; return OK; }
aclError aclrtResetDevice(int32_t device) { return OK; }
aclError aclrtGetDevice(int32_t *device) { *device = current_device; return current_device < 0 ? ERROR_NO_DEVICE : OK; }
aclError aclrtGetCurrentContext(handle *result) { *result = &context; return OK; }
aclError aclrtSetCurrentContext(handle wanted) { return OK; }
aclError aclrtGetPrimaryCtxState(int device, uint32_t *flags, int32_t *active) { *active = 1; return OK; }
const char *aclrtGetSocName(void) { const char *name = getenv("SIMNPU_SOC"); return name ? name : "Ascend910B1"; }
aclError aclrtGetLastError(int level) { return OK; }
aclError aclrtPeekAtLastError(int level) { return OK; }
aclError aclGetDeviceCapability(uint32_t device, int type, int64_t *value) { *value = 1; return OK; }
aclError aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) { *value = 24; return OK; }
aclError aclrtGetStreamResLimit(handle s, int type, uint32_t *value) { *value = 24; return OK; }
aclError aclrtGetDeviceResLimit(int device, int type, uint32_t *value) { *value = 24; return OK; }
aclError aclrtGetResInCurrentThread(int type, uint32_t *value) { *value = 24; return OK; }
aclError aclrtDeviceCanAccessPeer(int32_t *can, int a, int b) { *can = 0; return OK; }
aclError aclrtSetStreamFailureMode(handle s, uint64_t mode) { return OK; }
aclError aclrtSetStreamOverflowSwitch(handle s, uint32_t mode) { return OK; }
aclError aclrtSetStreamAttribute(handle s, int attribute, void *value) { return OK; }
/* torch_npu's own code calls some kernels of CANN past the dispatcher, where no kernel of ours can take their place. */
aclError aclopCompileAndExecute(const char *kernel) { return ERROR_INTERNAL; }
aclError aclrtSetDeviceSatMode(int mode) { return OK; }
aclError aclrtSetOpExecuteTimeOut(uint32_t seconds) { return OK; }
aclError aclrtSetOpWaitTimeout(uint32_t seconds) { return OK; }
aclError aclsysGetCANNVersion(int name, void *version) { return 1; }
aclError aclSetCompileopt(int option, const char *value) { return OK; }
size_t aclGetCompileoptSize(int option) { return 16; }
aclError aclGetCompileopt(int option, char *value, size_t bytes) { strncpy(value, "disable", bytes); return OK; }
aclError aclrtGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
aclError aclrtSetSysParamOpt(int option, int64_t value) { return OK; }
aclError aclrtCtxGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
aclError aclrtCtxSetSysParamOpt(int option, int64_t value) { return OK; }
